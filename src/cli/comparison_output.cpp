#include "cli/comparison_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace sluice::cli {
namespace {

// A plan as words: attention, selection, far keys, tau.
std::array<std::string, 4> words_of(const UniformAttention& choice, const PlanShape& shape) {
  const bool keys = choice.mode == AttentionMode::kKeys;
  return {std::string(mode_name(choice.mode)),
          std::string(rule_name(layer_plan(choice, shape).rule)),
          keys ? std::string(far_name(choice.far)) : "-", fmt::format("{}", choice.tau)};
}

// What tells the plans of a run apart, for headings.
std::vector<std::string> labels_of(const std::vector<UniformAttention>& choices,
                                   const PlanShape& shape) {
  const auto first = words_of(choices.front(), shape);
  std::vector<std::string> labels(choices.size(), "KL");
  for (size_t word = 0; word < first.size(); ++word) {
    const bool varies = std::any_of(choices.begin(), choices.end(), [&](const auto& choice) {
      return words_of(choice, shape)[word] != first[word];
    });
    for (size_t i = 0; varies && i < choices.size(); ++i)
      if (const std::string text = words_of(choices[i], shape)[word]; text != "-")
        labels[i] += " " + text;
  }
  return labels;
}

void print_single(int64_t n_windows, const Comparison& c) {
  if (n_windows == 1)
    fmt::print("{:>6} {:>11} {:>23} {:>23} {:>23} {:>19} {:>19}\n", "chunk", "PPL(base)", "PPL",
               "ln(PPL/PPL(base))", "KL divergence", "Δp RMS", "Same top p");
  fmt::print(
      "{:>6} {:>11.4f} {:>11.4f} ± {:>9.4f} {:>11.5f} ± {:>9.5f} {:>11.5f} ± {:>9.5f} "
      "{:>8.3f} ± {:>6.3f} % {:>8.3f} ± {:>6.3f} %\n",
      n_windows, c.base_ppl(), c.ppl(), c.ppl_stderr(), c.log_ratio().mean(),
      c.log_ratio().standard_error(), c.kl().mean(), c.kl().standard_error(), 100 * c.delta_p_rms(),
      100 * c.delta_p_rms_stderr(), 100 * c.same_top().mean(), 100 * c.same_top().standard_error());
}

}  // namespace

void print_running(const CompareResult& so_far, const std::vector<UniformAttention>& choices,
                   const PlanShape& shape) {
  if (choices.size() == 1) {
    print_single(so_far.n_windows, so_far.plans.front().tokens);
  } else {
    const auto labels = labels_of(choices, shape);
    if (so_far.n_windows == 1) {
      fmt::print("{:>6} {:>11}", "chunk", "PPL(base)");
      for (const std::string& label : labels) fmt::print("  {:>10}", label);
      fmt::print("\n");
    }
    fmt::print("{:>6} {:>11.4f}", so_far.n_windows, so_far.plans.front().tokens.base_ppl());
    for (size_t i = 0; i < labels.size(); ++i)
      fmt::print("  {:>{}.5f}", so_far.plans[i].tokens.kl().mean(),
                 std::max<size_t>(labels[i].size(), 10));
    fmt::print("\n");
  }
  std::fflush(stdout);
}

void print_summary(const PlanComparison& plan, const UniformAttention& choice) {
  const Comparison& c = plan.tokens;
  const auto line = [](const char* name, double value, double error) {
    fmt::print("{:<22}: {:>11.6f} ± {:>10.6f}\n", name, value, error);
  };
  const auto percent = [](const char* name, double value, double error) {
    fmt::print("{:<22}: {:>9.4f} ± {:>8.4f} %\n", name, 100 * value, 100 * error);
  };
  fmt::print("\n====== Perplexity ======\n");
  line("PPL(base)", c.base_ppl(), c.base_ppl_stderr());
  line("PPL", c.ppl(), c.ppl_stderr());
  line("ln(PPL/PPL(base))", c.log_ratio().mean(), c.log_ratio().standard_error());
  line("PPL/PPL(base)", c.ppl_ratio(), c.ppl_ratio_stderr());

  fmt::print("\n====== KL divergence, KL(dense‖{}) in nats ======\n", mode_name(choice.mode));
  line("Mean    KL", c.kl().mean(), c.kl().standard_error());
  fmt::print("{:<22}: {:>11.6f}\n", "Maximum KL", c.kl_values().maximum());
  for (const auto& [name, share] : {std::pair{"99.9%   KL", 0.999},
                                    {"99.0%   KL", 0.99},
                                    {"95.0%   KL", 0.95},
                                    {"90.0%   KL", 0.9},
                                    {"Median  KL", 0.5}})
    fmt::print("{:<22}: {:>11.6f}\n", name, c.kl_values().quantile(share));

  fmt::print("\n====== Probability of the token that follows ======\n");
  percent("Mean    Δp", c.delta_p().mean(), c.delta_p().standard_error());
  percent("RMS     Δp", c.delta_p_rms(), c.delta_p_rms_stderr());
  percent("Same top p", c.same_top().mean(), c.same_top().standard_error());

  fmt::print("\n====== Work, of what exact attention does ======\n");
  const auto share_line = [](const char* name, double value) {
    fmt::print("{:<22}: {:>9.4f}\n", name, value);
  };
  share_line("Keys read", plan.work.keys_read_fraction());
  share_line("Clusters / tokens", plan.work.clusters_fraction());
  share_line("Selection products", plan.work.selection_products());
  share_line("  by the paper's count", plan.work.selection_products_paper());
  share_line("Cache bytes", plan.cache.share_of_dense());
  if (plan.generation_match.count() > 0)
    fmt::print("\nGenerated alike: {:.1f} tokens, mean of {} continuations\n",
               plan.generation_match.mean(), plan.generation_match.count());
}

void print_table(const CompareResult& result, const std::vector<UniformAttention>& choices,
                 const PlanShape& shape) {
  fmt::print("\nPPL(base) {:.4f} ± {:.4f}, KL in nats\n", result.plans.front().tokens.base_ppl(),
             result.plans.front().tokens.base_ppl_stderr());
  const bool generated = result.plans.front().generation_match.count() > 0;
  fmt::print("{:<9} {:<14} {:<8} {:>6} {:>10} {:>9} {:>21} {:>19} {:>16}{}\n", "attention",
             "select", "far", "tau", "clusters/T", "keys read", "KL", "PPL/PPL(base)", "same top p",
             generated ? "   alike" : "");
  for (size_t i = 0; i < choices.size(); ++i) {
    const PlanComparison& plan = result.plans[i];
    const Comparison& c = plan.tokens;
    const auto words = words_of(choices[i], shape);
    fmt::print(
        "{:<9} {:<14} {:<8} {:>6} {:>10.4f} {:>9.4f} {:>10.6f} ± {:.6f} {:>8.4f} ± {:>8.4f} "
        "{:>7.3f} ± {:>4.3f}%",
        words[0], words[1], words[2], words[3], plan.work.clusters_fraction(),
        plan.work.keys_read_fraction(), c.kl().mean(), c.kl().standard_error(), c.ppl_ratio(),
        c.ppl_ratio_stderr(), 100 * c.same_top().mean(), 100 * c.same_top().standard_error());
    if (generated) fmt::print(" {:>7.1f}", plan.generation_match.mean());
    fmt::print("\n");
  }
}

}  // namespace sluice::cli
