#include "cli/comparison_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>

#include "cli/options/attention_options.h"
#include "cli/terminal/print.h"
#include "select/auto_tau.h"

namespace sluice::impl::cli {
namespace {

// A plan as words; "-" where it has none. A number needs its heading to be understood.
struct Word {
  const char* heading;
  std::string text;
  bool number = false;
};
// The mode, and the kind of cache where it is not the default.
std::string name_of(const UniformAttention& attention) {
  const bool exact = attention.cache == CacheKind::kExact;
  return fmt::format("{}{}{}", attention_name(attention), exact ? "" : " ",
                     exact ? "" : cache_name(attention.cache));
}

std::vector<Word> words_of(const UniformChoice& choice, const PlanShape& shape) {
  const UniformAttention& attention = choice.attention;
  const UniformLinear& linear = choice.linear;
  if (!choice.file.empty())
    return {{"attention", choice.file},
            {"select", "-"},
            {"far", "-"},
            {"tau", "-"},
            {"delta", "-"},
            {"keep", "-"},
            {"linear", "-"},
            {"rank", "-"},
            {"epsilon", "-"}};
  const bool refine = attention.mode == AttentionMode::kRefine;
  const bool baseline = attention.mode == AttentionMode::kBaseline;
  const bool selects = attention.mode != AttentionMode::kDense && !refine && !baseline;
  const bool keys = attention.mode == AttentionMode::kKeys, gsi = linear.kind == LinearKind::kGsi;
  return {
      {"attention", name_of(attention)},
      {"select", selects ? std::string(rule_name(layer_plan(attention, shape).rule)) : "-"},
      {"far", keys ? std::string(far_name(attention.far)) : "-"},
      {"tau", selects ? tau_text(attention) : "-", true},
      {"delta", refine ? fmt::format("{}", attention.delta) : "-", true},
      {"keep", baseline ? fmt::format("{}", attention.baseline.keep) : "-", true},
      {"linear", std::string(linear_name(linear.kind))},
      {"rank", gsi ? fmt::format("{}", linear.rank) : "-", true},
      {"epsilon", linear.kind == LinearKind::kDense ? "-" : fmt::format("{}", linear.epsilon),
       true},
  };
}

bool any_attention(const std::vector<UniformChoice>& choices) {
  return std::any_of(choices.begin(), choices.end(),
                     [](const UniformChoice& choice) { return !choice.attention.all_exact(); });
}

bool any_linear(const std::vector<UniformChoice>& choices) {
  return std::any_of(choices.begin(), choices.end(), [](const UniformChoice& choice) {
    return choice.linear.kind != LinearKind::kDense;
  });
}

std::string or_dash(const std::optional<double>& value) {
  return value ? fmt::format("{:.4f}", *value) : "-";
}

// What tells the plans of a run apart, for headings.
std::vector<std::string> labels_of(const std::vector<UniformChoice>& choices,
                                   const PlanShape& shape) {
  const auto first = words_of(choices.front(), shape);
  std::vector<std::string> labels(choices.size(), "KL");
  for (size_t word = 0; word < first.size(); ++word) {
    const bool varies = std::any_of(choices.begin(), choices.end(), [&](const auto& choice) {
      return words_of(choice, shape)[word].text != first[word].text;
    });
    for (size_t i = 0; varies && i < choices.size(); ++i)
      if (const Word said = words_of(choices[i], shape)[word]; said.text != "-")
        labels[i] += (said.number ? fmt::format(" {} ", said.heading) : " ") + said.text;
  }
  return labels;
}

// What each linear input did, a line each.
void print_groups(const LinearWork& work) {
  const auto any = [&](const auto& has) {
    return std::any_of(work.groups().begin(), work.groups().end(), has);
  };
  if (any([](const GroupWork& group) { return group.plan.kind == LinearKind::kGsi; }))
    print("\nresidual: ‖r‖/‖x‖ of the tokens tried, bypassed ones left out\n");
  const bool adaptive = any([](const GroupWork& group) { return group.plan.adaptive > 0; });
  print("\n{:>5} {:<16} {:<6} {:>5} {:>8} {:>8} {:>10} {:>9} {:>12} {:>8}{}\n", "layer", "input",
        "kind", "rank", "fast", "bypassed", "bytes read", "kept", "residual 50%", "90%",
        adaptive ? " additions" : "");
  for (const GroupWork& group : work.groups()) {
    const LinearCounts& counts = group.counts;
    const bool gsi = group.plan.kind == LinearKind::kGsi && counts.n_tokens > 0;
    const auto quantile = [&](double q) -> std::optional<double> {
      if (counts.residuals.count() == 0) return {};
      return counts.residuals.quantile(q);
    };
    const auto bypassed = [&]() -> std::optional<double> {
      if (!gsi) return {};
      return static_cast<double>(counts.n_bypassed) / static_cast<double>(counts.n_tokens);
    };
    print("{:>5} {:<16} {:<6} {:>5} {:>8} {:>8} {:>10} {:>9} {:>12} {:>8}", group.layer,
          basis_input_name(group.input), linear_name(group.plan.kind),
          gsi ? fmt::format("{}", group.plan.rank) : "-", or_dash(group.fast_path_fraction()),
          or_dash(bypassed()), or_dash(group.bytes_fraction()), or_dash(group.kept_fraction()),
          or_dash(quantile(0.5)), or_dash(quantile(0.9)));
    print("{}\n", adaptive ? fmt::format(" {:>9}", counts.n_additions) : "");
  }
}

// What layers with tau auto chose.
void print_taus(const AttentionWork& work) {
  print("{:<22}:", "Tau of the layers");
  if (work.chosen_taus().empty()) print(" none, windows of fewer than {} tokens", kAutoTokens);
  for (const RunningMean& tau : work.chosen_taus())
    print(" {}", tau.count() > 0 ? fmt::format("{:.2f}", tau.mean()) : "-");
  print("\n");
}

// What keys read are made of, mean over the layers that refine.
void print_refined(const AttentionWork& work) {
  RunningMean near, clusters, opened;
  for (const RefineReads& reads : work.refine_reads()) {
    if (reads.empty()) continue;
    near.add(reads.near_fraction());
    clusters.add(reads.clusters_fraction());
    opened.add(reads.opened_fraction());
  }
  print("{:<22}: {:>9.4f}\n{:<22}: {:>9.4f}\n{:<22}: {:>9.4f}\n", "  near keys", near.mean(),
        "  cluster means", clusters.mean(), "  opened members", opened.mean());
  // Each head opens its own: sets per head, the paper's section 8.5.
  for (size_t layer = 0; layer < work.refine_reads().size(); ++layer) {
    if (work.refine_reads()[layer].empty()) continue;
    print("{:<22}:", fmt::format("    heads of layer {}", layer));
    for (const double share : work.refine_reads()[layer].opened_by_head()) print(" {:.3f}", share);
    print("\n");
  }
}

// What an encoder finds behind masks, and how far its rows are from the exact ones.
void print_masked(const MaskedFigures& masked) {
  print("\n====== Masked tokens found, and hidden rows ======\n");
  print("{:<22}: {:>9.4f} ± {:>8.4f} %\n{:<22}: {:>9.4f} ± {:>8.4f} %\n", "Accuracy(base)",
        100 * masked.base_right.mean(), 100 * masked.base_right.standard_error(), "Accuracy",
        100 * masked.right.mean(), 100 * masked.right.standard_error());
  print("{:>22}  {:>9} {:>14}\n", "rows after", "cosine", "relative error");
  for (size_t i = 0; i < masked.layers.size(); ++i)
    print("{:>22}  {:>9.6f} {:>14.6f}\n", fmt::format("attention {}", i),
          masked.layers[i].cosine.mean(), masked.layers[i].relative.mean());
  print("{:>22}  {:>9.6f} {:>14.6f}\n", "the last norm", masked.hidden.cosine.mean(),
        masked.hidden.relative.mean());
}

// As printed: shares in percent.
double factor_of(const Metric& metric) { return metric.unit == Metric::Unit::kShare ? 100 : 1; }

// A line of the summary.
void print_metric(const Comparison& c, const Metric& metric) {
  const bool share = metric.unit == Metric::Unit::kShare;
  const double factor = factor_of(metric);
  print("{:<22}: {:>{}.{}f}", metric.name, factor * c.value(metric), share ? 9 : 11, share ? 4 : 6);
  if (metric.has_error())
    print(" ± {:>{}.{}f}", factor * c.error(metric), share ? 8 : 10, share ? 4 : 6);
  print("{}\n", share ? " %" : "");
}

void print_section(const Comparison& c, Metric::Section section, const std::string& heading) {
  print("\n====== {} ======\n", heading);
  for (const Metric& metric : kMetrics)
    if (metric.section == section) print_metric(c, metric);
}

// A cell of the line after a window, as wide as its heading is printed.
std::string running_cell(const Comparison& c, const Metric& metric) {
  const bool share = metric.unit == Metric::Unit::kShare;
  const double factor = factor_of(metric);
  const int digits = metric.running.digits;
  std::string text = fmt::format("{:>{}.{}f}", factor * c.value(metric), share ? 8 : 11, digits);
  if (metric.running.with_error)
    text += fmt::format(" ± {:>{}.{}f}", factor * c.error(metric), share ? 6 : 9, digits);
  return text + (share ? " %" : "");
}

int running_width(const Metric& metric) {
  const bool share = metric.unit == Metric::Unit::kShare;
  return (share ? 10 : 11) + (!metric.running.with_error ? 0 : share ? 9 : 12);
}

void print_single(int64_t n_windows, const Comparison& c) {
  std::string headings = fmt::format("{:>6}", "window"), line = fmt::format("{:>6}", n_windows);
  for (const Metric& metric : kMetrics) {
    if (!metric.has_running()) continue;
    headings += fmt::format(" {:>{}}", metric.running.heading, running_width(metric));
    line += " " + running_cell(c, metric);
  }
  if (n_windows == 1) print("{}\n", headings);
  print("{}\n", line);
}

// Metrics with a column in the table of several plans, from the left.
std::vector<const Metric*> column_metrics() {
  std::vector<const Metric*> columns;
  for (const Metric& metric : kMetrics)
    if (metric.column.place > 0) columns.push_back(&metric);
  std::ranges::sort(columns, {}, [](const Metric* metric) { return metric->column.place; });
  return columns;
}

std::string column_cell(const Comparison& c, const Metric& metric) {
  const double factor = factor_of(metric);
  const int digits = metric.column.digits;
  std::string text = fmt::format("{:.{}f}", factor * c.value(metric), digits);
  if (metric.has_error()) text += fmt::format(" ± {:.{}f}", factor * c.error(metric), digits);
  return text + (metric.unit == Metric::Unit::kShare ? "%" : "");
}

std::string interval_text(const std::optional<PairedInterval>& interval) {
  return interval
             ? fmt::format("{:.5f} [{:.5f}, {:.5f}]", interval->mean, interval->low, interval->high)
             : "-";
}

// Differences over the same windows, with intervals.
void print_paired(const CompareResult& result, const std::vector<std::string>& labels) {
  const std::vector<PlanComparison>& plans = result.plans;
  if (!paired_log_ratio(plans.front())) return;
  size_t width = 6;
  for (const std::string& label : labels) width = std::max(width, label.size());
  print("\nPaired over {} windows: mean difference [95% bootstrap interval]\n",
        plans.front().windows.size());
  print("{:>{}}  {:>32}", "", width, "ln PPL less base's");
  if (plans.size() > 1) print("  {:>32}  {:>32}", "KL less the first's", "ln PPL less the first's");
  print("\n");
  for (size_t i = 0; i < plans.size(); ++i) {
    print("{:>{}}  {:>32}", labels[i], width, interval_text(paired_log_ratio(plans[i])));
    if (i > 0)
      print("  {:>32}  {:>32}", interval_text(paired_kl(plans[i], plans[0])),
            interval_text(paired_loss(plans[i], plans[0])));
    print("\n");
  }
}

}  // namespace

void print_running(const CompareResult& so_far, const std::vector<UniformChoice>& choices,
                   const PlanShape& shape) {
  if (choices.size() == 1) {
    print_single(so_far.n_windows, so_far.plans.front().tokens);
  } else {
    const auto labels = labels_of(choices, shape);
    if (so_far.n_windows == 1) {
      print("{:>6} {:>11}", "window", "PPL(base)");
      for (const std::string& label : labels) print("  {:>10}", label);
      print("\n");
    }
    print("{:>6} {:>11.4f}", so_far.n_windows,
          so_far.plans.front().tokens.value(metric("ppl_base")));
    for (size_t i = 0; i < labels.size(); ++i)
      print("  {:>{}.5f}", so_far.plans[i].tokens.value(metric("kl_mean")),
            std::max<size_t>(labels[i].size(), 10));
    print("\n");
  }
  std::fflush(stdout);
}

void print_summary(const PlanComparison& plan, const UniformChoice& choice) {
  const Comparison& c = plan.tokens;
  print_section(c, Metric::Section::kPerplexity, "Perplexity");

  const bool attention = any_attention({choice}), linear = any_linear({choice});
  std::string what = choice.file;
  if (what.empty())
    what = fmt::format("{}{}{}", attention ? name_of(choice.attention) : "",
                       attention && linear ? " and " : "",
                       linear ? linear_name(choice.linear.kind) : "");
  print_section(c, Metric::Section::kDivergence,
                fmt::format("KL divergence, KL(dense‖{}) in nats", what));
  print_section(c, Metric::Section::kNextToken,
                plan.masked ? "Probability of the token behind a mask"
                            : "Probability of the token that follows");
  if (plan.masked) print_masked(*plan.masked);

  print("\n====== Work, of what the exact model does ======\n");
  const auto share_line = [](const char* name, double value) {
    print("{:<22}: {:>9.4f}\n", name, value);
  };
  if (choice.attention.tau_auto) print_taus(plan.work);
  if (attention && choice.attention.mode != AttentionMode::kDense) {
    share_line("Keys read", plan.work.keys_read_fraction());
    share_line("Clusters / tokens", plan.work.clusters_fraction());
    if (!plan.work.refine_reads().empty()) {
      print_refined(plan.work);
    } else if (choice.attention.mode != AttentionMode::kBaseline) {
      share_line("Selection products", plan.work.selection_products());
      share_line("  by the paper's count", plan.work.selection_products_paper());
    }
  }
  if (attention) share_line("Cache bytes", plan.cache.share_of_dense());
  if (linear) {
    if (const auto fast = plan.linear.fast_path_fraction()) share_line("Tokens fast", *fast);
    share_line("Weight bytes", plan.linear.weight_bytes_fraction());
    print_groups(plan.linear);
  }
  if (plan.generation_match.count() > 0)
    print("\nGenerated alike: {:.1f} tokens, {:.1f} characters, mean of {} continuations\n",
          plan.generation_match.mean(), plan.generation_match_characters.mean(),
          plan.generation_match.count());
}

void print_table(const CompareResult& result, const std::vector<UniformChoice>& choices,
                 const PlanShape& shape) {
  const Comparison& first = result.plans.front().tokens;
  print("\nPPL(base) {:.4f} ± {:.4f}, {}KL in nats\n", first.value(metric("ppl_base")),
        first.error(metric("ppl_base")),
        result.plans.front().masked
            ? fmt::format("accuracy(base) {:.2f}%, ",
                          100 * result.plans.front().masked->base_right.mean())
            : "");
  const bool generated = result.plans.front().generation_match.count() > 0;
  const bool attention = any_attention(choices), linear = any_linear(choices);
  const auto has = [&](AttentionMode mode) {
    return std::any_of(choices.begin(), choices.end(),
                       [&](const UniformChoice& choice) { return choice.attention.mode == mode; });
  };
  const bool refine = has(AttentionMode::kRefine), baseline = has(AttentionMode::kBaseline);
  const std::array<int, 4> widths = {baseline ? 15 : 9, 14, 9, 6};
  for (size_t i = 0; i < choices.size(); ++i) {
    const auto words = words_of(choices[i], shape);
    const PlanComparison& plan = result.plans[i];
    std::string heading, row;
    const auto add = [&](std::string_view name, int width, const std::string& text) {
      heading += fmt::format("{:>{}} ", name, width);
      row += fmt::format("{:>{}} ", text, width);
    };
    if (attention) {
      for (size_t word = 0; word < 4; ++word)
        add(words[word].heading, widths[word], words[word].text);
      if (refine) add(words[4].heading, 7, words[4].text);
      if (baseline) add(words[5].heading, 6, words[5].text);
      add("clusters/T", 10, fmt::format("{:.4f}", plan.work.clusters_fraction()));
      add("keys read", 9, fmt::format("{:.4f}", plan.work.keys_read_fraction()));
    }
    if (linear) {
      for (size_t word = 6; word < words.size(); ++word)
        add(words[word].heading, word == 7 ? 5 : 7, words[word].text);
      add("fast", 7, or_dash(plan.linear.fast_path_fraction()));
      add("bytes read", 10, fmt::format("{:.4f}", plan.linear.weight_bytes_fraction()));
    }
    for (const Metric* metric : column_metrics())
      add(metric->column.heading, metric->column.width, column_cell(plan.tokens, *metric));
    if (plan.masked) {
      add("accuracy", 16,
          fmt::format("{:.2f} ± {:.2f}%", 100 * plan.masked->right.mean(),
                      100 * plan.masked->right.standard_error()));
      add("row cosine", 10, fmt::format("{:.4f}", plan.masked->hidden.cosine.mean()));
      add("row error", 9, fmt::format("{:.4f}", plan.masked->hidden.relative.mean()));
    }
    if (generated) {
      add("alike", 6, fmt::format("{:.1f}", plan.generation_match.mean()));
      add("characters", 10, fmt::format("{:.1f}", plan.generation_match_characters.mean()));
    }
    if (i == 0) print("{}\n", heading);
    print("{}\n", row);
  }
  std::vector<std::string> labels = labels_of(choices, shape);
  for (std::string& label : labels) label.erase(0, std::string_view("KL ").size());
  print_paired(result, labels);
}

}  // namespace sluice::impl::cli
