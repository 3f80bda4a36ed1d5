#include "cli/demo/demo_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/terminal/print.h"
#include "eval/text/token_text.h"

namespace sluice::impl::cli {

void print_clusters(const Tokenizer& tokenizer, const TokenMap& map, size_t layer,
                    size_t n_clusters) {
  std::map<int32_t, std::vector<int32_t>> members;  // owner -> those that stand behind it
  const TokenMap::Layer& at = map.layers[layer];
  for (size_t t = 0; t < at.owner.size(); ++t)
    if (at.status[t] == TokenStatus::kRedundant)
      members[at.owner[t]].push_back(static_cast<int32_t>(t));
  std::vector<std::pair<int32_t, std::vector<int32_t>>> clusters(members.begin(), members.end());
  std::stable_sort(clusters.begin(), clusters.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  clusters.resize(std::min(clusters.size(), n_clusters));
  const auto quoted = [&](int32_t position) {
    return nlohmann::json(token_text(tokenizer, map.tokens[static_cast<size_t>(position)])).dump();
  };
  if (!clusters.empty()) print("\nAt layer {}:\n", layer);
  for (const auto& [owner, tokens] : clusters) {
    std::map<std::string, int> counts;
    for (const int32_t t : tokens) ++counts[quoted(t)];
    std::vector<std::pair<std::string, int>> texts(counts.begin(), counts.end());
    std::stable_sort(texts.begin(), texts.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    std::string listed;
    for (size_t i = 0; i < std::min<size_t>(texts.size(), 5); ++i)
      listed += fmt::format("{}{} x{}", i ? ", " : "", texts[i].first, texts[i].second);
    print("  {} at {} stands for {} others: {}{}\n", quoted(owner), owner, tokens.size(), listed,
          texts.size() > 5 ? ", …" : "");
  }
}

std::string setting_of(const UniformAttention& choice) {
  return choice.mode == AttentionMode::kRefine ? fmt::format("delta {}", choice.delta)
                                               : fmt::format("tau {}", choice.tau);
}

TextTable quality_table(const CompareResult& result, const std::vector<UniformChoice>& choices) {
  const Comparison& first = result.plans.front().tokens;
  TextTable table(
      fmt::format("{} tokens predicted in {} window{}, dense perplexity {:.2f}; ± standard error",
                  first.n_tokens(), result.n_windows, result.n_windows == 1 ? "" : "s",
                  first.value(metric("ppl_base"))),
      {"attention", "setting", "keys read", "KL, nats", "perplexity ratio", "same top token"});
  for (size_t i = 0; i < choices.size(); ++i) {
    const PlanComparison& plan = result.plans[i];
    const Comparison& c = plan.tokens;
    const int digits = c.value(metric("kl_mean")) < 0.1 ? 4 : 2;
    const auto with_error = [&](const Metric& of, int decimals) {
      return words(fmt::format("{:.{}f} ± {:.{}f}", c.value(of), decimals, c.error(of), decimals));
    };
    table.add(
        {words(std::string(mode_name(choices[i].attention.mode))),
         words(setting_of(choices[i].attention)),
         cell(plan.work.keys_read_fraction(), {.decimals = 0, .factor = 100, .unit = "%"}),
         with_error(metric("kl_mean"), digits), with_error(metric("ppl_ratio"), digits - 1),
         cell(c.value(metric("top1_agreement")), {.decimals = 1, .factor = 100, .unit = "%"})});
  }
  return table;
}

TextTable speed_table(const BenchResult& result) {
  TextTable table(
      fmt::format("Medians of {} rounds; speed-up: dense time over this one's of the same round, "
                  "lowest to highest",
                  result.options.repeat),
      {"test", "attention", "ms", "speed-up", "selection", "attention's share"}, 2);
  for (const BenchCase& found : result.cases) {
    const BenchSample middle = found.middle();
    const auto share = [&](double part) {
      return cell(part / middle.total, {.decimals = 0, .factor = 100, .unit = "%"});
    };
    table.add({words(found.name), words(result.candidates[found.candidate].label),
               cell(middle.total, {.decimals = 2}),
               found.candidate == 0
                   ? no_value()
                   : words(fmt::format("{:.2f} ({:.2f} to {:.2f})", found.speedup.middle,
                                       found.speedup.low, found.speedup.high)),
               share(middle.select), share(middle.attend)});
  }
  return table;
}

TextTable contract_table(const TuneOptions& options, const TuneResult& result) {
  TextTable table("Tuned plan", {"figure", "plan"}, 2);
  const auto loss = [](const Loss& of) {
    return words(fmt::format("{:.4f} ± {:.4f}", of.kl.mean(), of.kl.standard_error()));
  };
  table.add({words("KL allowed"), words(fmt::format("{}", options.contract.max_kl))});
  table.add({words("KL predicted"), words(fmt::format("{:.4f}", result.predicted_kl))});
  table.add({words("KL, calibration text"), loss(result.calibration)});
  table.add({words("KL, held-out text"), loss(result.held_out)});
  table.add({words("cache, of dense"),
             words(fmt::format("{:.0f}%", 100 * result.cost / result.dense_cost))});
  for (const BenchCase& found : result.speed.cases)
    if (found.candidate > 0 && found.n_tokens == options.split.context)
      table.add({words(found.name + " speed-up"),
                 words(fmt::format("{:.2f} ({:.2f} to {:.2f})", found.speedup.middle,
                                   found.speedup.low, found.speedup.high))});
  return table;
}

}  // namespace sluice::impl::cli
