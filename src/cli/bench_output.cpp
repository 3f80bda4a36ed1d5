#include "cli/bench_output.h"

#include <fmt/format.h>

#include "cli/attention_options.h"
#include "plan/plan_json.h"

namespace sluice::cli {
namespace {

std::string label_of(const UniformAttention& choice) {
  std::string label = fmt::format("{}, tau {}", mode_name(choice.mode), choice.tau);
  if (choice.rule) label += fmt::format(", {}", rule_name(*choice.rule));
  if (choice.far != FarKey::kCentroid) label += fmt::format(", far {}", far_name(choice.far));
  return label;
}

}  // namespace

std::vector<BenchCandidate> bench_candidates(const std::vector<UniformAttention>& choices,
                                             const PlanShape& shape) {
  std::vector<BenchCandidate> candidates;
  for (const UniformAttention& choice : choices)
    candidates.push_back({.label = label_of(choice),
                          .mode = std::string(mode_name(choice.mode)),
                          .settings = describe_attention(choice, shape),
                          .plan = uniform_plan(choice, shape)});
  return candidates;
}

TextTable bench_table(const BenchResult& result, std::string title) {
  TextTable table(std::move(title),
                  {"test", "attention", "ms", "tokens/s", "speed-up", "low", "high", "select",
                   "attend", "rest", "r/T"},
                  2);
  for (const BenchCase& found : result.cases) {
    const BenchSample middle = found.middle();
    const auto share = [&](double part) {
      return cell(part / middle.total, {.decimals = 1, .factor = 100, .unit = "%"});
    };
    const auto ratio = [](double value) { return cell(value, {.decimals = 2}); };
    table.add({words(found.name), words(result.candidates[found.candidate].label),
               cell(middle.total, {.decimals = 2}), cell(found.tokens_per_s(), {.decimals = 1}),
               ratio(found.speedup.middle), ratio(found.speedup.low), ratio(found.speedup.high),
               share(middle.select), share(middle.attend), share(middle.rest()),
               found.reps_fraction ? cell(*found.reps_fraction, {.decimals = 3}) : no_value()});
  }
  return table;
}

}  // namespace sluice::cli
