#include "cli/bench_output.h"

#include <fmt/format.h>

#include "cli/options/attention_options.h"
#include "cli/options/linear_options.h"
#include "plan/plan_json.h"

namespace sluice::impl::cli {
namespace {

std::string label_of(const UniformAttention& choice) {
  const bool exact = choice.cache == CacheKind::kExact;
  const std::string cache = exact ? "" : fmt::format("cache {}", cache_name(choice.cache));
  if (choice.mode == AttentionMode::kDense) return cache;
  if (choice.mode == AttentionMode::kRefine)
    return fmt::format("refine, delta {}{}{}", choice.delta, exact ? "" : ", ", cache);
  if (choice.mode == AttentionMode::kBaseline)
    return fmt::format("{}, keep {}", attention_name(choice), choice.baseline.keep);
  std::string label = fmt::format("{}, tau {}", mode_name(choice.mode), tau_text(choice));
  if (choice.rule) label += fmt::format(", {}", rule_name(*choice.rule));
  if (choice.far != FarKey::kCentroid) label += fmt::format(", far {}", far_name(choice.far));
  if (choice.joint) label += ", joint";
  return label;
}

}  // namespace

std::vector<std::string> choice_labels(const std::vector<UniformChoice>& choices) {
  std::vector<std::string> labels;
  for (const UniformChoice& choice : choices) {
    std::string label = label_of(choice.attention);
    if (choice.linear.kind != LinearKind::kDense)
      label += (label.empty() ? "" : "; ") + linear_text(choice.linear);
    labels.push_back(choice.file.empty() ? std::move(label) : choice.file);
  }
  return labels;
}

std::vector<BenchCandidate> bench_candidates(const std::vector<UniformChoice>& choices,
                                             const std::vector<Plan>& plans,
                                             const PlanShape& shape) {
  std::vector<BenchCandidate> candidates;
  std::vector<std::string> labels = choice_labels(choices);
  for (size_t i = 0; i < choices.size(); ++i) {
    const UniformAttention& attention = choices[i].attention;
    const UniformLinear& linear = choices[i].linear;
    nlohmann::json settings = describe_choice(choices[i], shape);
    const std::string_view kind = linear_name(linear.kind);
    const bool dense = attention.mode == AttentionMode::kDense;
    candidates.push_back({.label = std::move(labels[i]),
                          .mode = std::string(dense ? kind : mode_name(attention.mode)),
                          .linear = std::string(kind),
                          .settings = std::move(settings),
                          .plan = plans[i]});
  }
  return candidates;
}

TextTable bench_table(const BenchResult& result, std::string title) {
  TextTable table(std::move(title), {"test", "mode", "ms", "tokens/s", "speed-up"}, 2);
  for (const BenchCase& found : result.cases) {
    const Ratio& speedup = found.speedup;
    const bool differs = speedup.above_one() || speedup.below_one();
    const std::string gain =
        fmt::format("{} ({:.2f} to {:.2f}){}",
                    differs ? fmt::format("{:.2f}", speedup.middle) : "no difference", speedup.low,
                    speedup.high, found.disturbed() ? ", disturbed" : "");
    table.add({words(found.name), words(result.label_of(found)),
               cell(found.middle().total, {.decimals = 2}),
               cell(found.tokens_per_s(), {.decimals = 1}),
               found.candidate == 0 ? no_value() : words(gain)});
  }
  table.drop_empty_columns();
  return table;
}

TextTable full_bench_table(const BenchResult& result, std::string title) {
  TextTable table(std::move(title),
                  {"test", "mode", "ms", "tokens/s", "speed-up", "low", "high", "select", "attend",
                   "linear", "rest", "r/T", "dropped", "fast", "weights"},
                  2);
  for (const BenchCase& found : result.cases) {
    const BenchSample middle = found.middle();
    const auto share = [&](double part) {
      return cell(part / middle.total, {.decimals = 1, .factor = 100, .unit = "%"});
    };
    const auto or_none = [](const std::optional<double>& value) {
      return value ? cell(*value, {.decimals = 3}) : no_value();
    };
    const auto ratio = [](double value) { return cell(value, {.decimals = 2}); };
    table.add({words(found.name), words(result.label_of(found)),
               cell(middle.total, {.decimals = 2}), cell(found.tokens_per_s(), {.decimals = 1}),
               ratio(found.speedup.middle), ratio(found.speedup.low), ratio(found.speedup.high),
               share(middle.select), share(middle.attend), share(middle.linear),
               share(middle.rest()), or_none(found.reps_fraction),
               or_none(found.pairs_dropped_fraction), or_none(found.fast_path_fraction),
               or_none(found.weight_bytes_fraction)});
  }
  table.drop_empty_columns();
  return table;
}

}  // namespace sluice::impl::cli
