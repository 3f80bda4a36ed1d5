#include <fmt/format.h>

#include <algorithm>

#include "cli/conclusion/conclusion.h"

namespace sluice::impl::cli {
namespace {

// What the tests of one kind show of all candidates.
struct Shown {
  const BenchCase* best = nullptr;    // by the median, of those that followed their plans
  const BenchCase* faster = nullptr;  // the same of those beyond noise
  bool any_equal = false;             // a range holds 1
};

Shown shown_by(const BenchResult& result, const std::string& kind) {
  Shown shown;
  const auto better = [](const BenchCase& found, const BenchCase* than) {
    return than == nullptr || found.speedup.middle > than->speedup.middle;
  };
  for (const BenchCase& found : result.cases) {
    if (found.candidate == 0 || found.ran_dense || !found.name.starts_with(kind)) continue;
    if (better(found, shown.best)) shown.best = &found;
    const bool beyond_noise = found.speedup.above_one() && !found.disturbed();
    if (beyond_noise && better(found, shown.faster)) shown.faster = &found;
    shown.any_equal = shown.any_equal || (!found.speedup.above_one() && !found.speedup.below_one());
  }
  return shown;
}

std::string text_of(const BenchResult& result, const Shown& shown, bool reading) {
  const char* work = reading ? "reading a prompt" : "decoding";
  if (shown.faster != nullptr)
    return fmt::format("{} {} {} tokens is {:.2f} times as fast as dense with {}", work,
                       reading ? "of" : "after", shown.faster->n_tokens,
                       shown.faster->speedup.middle, result.label_of(*shown.faster));
  if (shown.any_equal || shown.best->speedup.above_one())
    return fmt::format("{} shows no difference", work);
  return fmt::format("{} is slower than dense, at best {:.2f} times as fast ({})", work,
                     shown.best->speedup.middle, result.label_of(*shown.best));
}

std::string capitalised(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 32);
  return text;
}

}  // namespace

std::string bench_conclusion(const BenchResult& result, int64_t context) {
  std::string text;
  const Shown reading = shown_by(result, "pp"), decoding = shown_by(result, "tg");
  if (result.candidates.size() == 1)
    text = "Dense alone was timed; what a plan saves: --attention refine, with a text of yours.";
  else if (reading.best == nullptr && decoding.best == nullptr)
    text = "The plan was not followed at these lengths, since dense is faster there.";
  for (const bool is_reading : {true, false}) {
    const Shown& shown = is_reading ? reading : decoding;
    if (shown.best == nullptr) continue;
    text += (text.empty() ? "" : "; ") + text_of(result, shown, is_reading);
  }
  if (reading.best != nullptr || decoding.best != nullptr) {
    text = capitalised(std::move(text)) + ".";
    const int64_t longest =
        *std::max_element(result.options.lengths.begin(), result.options.lengths.end());
    const int64_t room = context - result.options.n_predict;
    if (reading.faster == nullptr && decoding.faster == nullptr && longest < room)
      text +=
          fmt::format(" It may pay for longer prompts: try -c {}.", std::min(4 * longest, room));
    text += " What it loses: sluice eval with the same choice.";
  }
  const auto n_disturbed = std::count_if(result.cases.begin(), result.cases.end(),
                                         [](const BenchCase& found) { return found.disturbed(); });
  if (n_disturbed > 0)
    text += fmt::format(
        " Other work disturbed {} of {} tests, after a repetition too: their spread is above "
        "{:.0f}%.",
        n_disturbed, result.cases.size(), 100 * kMostSpread);
  return text;
}

}  // namespace sluice::impl::cli
