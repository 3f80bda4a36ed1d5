#include <fmt/format.h>

#include "cli/conclusion/conclusion.h"

namespace sluice::impl::cli {
namespace {

// What the plan saves by its objective.
std::string saving(const TuneOptions& options, const TuneResult& result) {
  const bool reading = options.objective == PlanObjective::kPrefill;
  const double share = 100 * result.cost / result.dense_cost;
  if (!is_time(options.objective))
    return options.objective == PlanObjective::kMemory
               ? fmt::format("Keys and values take {:.0f}% of dense's memory", share)
               : fmt::format("Attention reads {:.0f}% of the keys that may be left out", share);
  const BenchCase* longest = nullptr;
  for (const BenchCase& found : result.speed.cases)
    if (found.candidate > 0 && found.name.starts_with(reading ? "pp" : "tg")) longest = &found;
  if (longest == nullptr) return "The plan was not timed";
  return fmt::format("{} {} tokens is {:.2f} times as fast as dense",
                     reading ? "Reading a prompt of" : "Decoding after", longest->n_tokens,
                     longest->speedup.middle);
}

}  // namespace

std::string tune_conclusion(const TuneOptions& options, const TuneResult& result,
                            const std::string& output) {
  if (!result.dense_because.empty())
    return fmt::format(
        "The plan is dense: {}. Nothing is lost and nothing saved. Plans pay for longer contexts "
        "(-c), in decoding (--objective decode), or with a larger loss.",
        result.dense_because);
  return fmt::format(
      "{}, and KL {:.4f} a token is lost on text held out. Use it: sluice generate "
      "--plan {}.",
      saving(options, result), result.held_out.kl.mean(), output);
}

}  // namespace sluice::impl::cli
