// Tables 6 to 9 of the paper, its cost model, and r against tau: one row per profile or rule.

#include <fmt/format.h>

#include <algorithm>

#include "cli/analyze/analyze_tables.h"

namespace sluice::impl::cli {
namespace {

constexpr Digits kRatio{.decimals = 2};
constexpr Digits kMillions{.decimals = 3, .factor = 1e-6, .unit = "M"};

// For the first profile `greedy`, which does without inheritance, and the cascades; for the others
// the leading rule, or `greedy` where that is `independent`, the measure of the others.
template <typename Visit>
void each_rule(const AnalyzeReport& report, const Profile& profile, const Visit& visit) {
  const std::vector<SetKind> kinds = set_kinds(report.rules);
  const size_t one = std::max(report.leading(), kGreedySet);
  const bool all = &profile == &report.profiles.front();
  for (size_t k = kGreedySet; k < kinds.size(); ++k)
    if (all ? kinds[k].rule != SelectRule::kFixed : k == one) visit(k, kinds[k].name);
}

// The paper's model where all but the length is as in the paper.
const PaperModel* paper_of_settings(const AnalyzeReport& report, const Profile& profile) {
  const bool same =
      profile.tau == kPaperTau && profile.space == RowSpace::kResidual && !report.exempts;
  return same ? paper_model_of(report.spec) : nullptr;
}

Cell paper_label(const PaperModel& paper) { return words(std::string(paper.name) + " paper"); }

Cell turnover_range(double least, double largest) {
  return words(fmt::format("{:.0f}-{:.0f}%", 100 * least, 100 * largest));
}

Cell turnover_range(const SetSummary& summary) {
  if (summary.deep_turnover_min.count() == 0) return no_value();
  return turnover_range(summary.deep_turnover_min.mean(), summary.deep_turnover_max.mean());
}

TextTable gram_table(const AnalyzeReport& report) {
  TextTable table(
      fmt::format(
          "Table 6. {}: Gram products of a whole pass, in key space of all heads. By the "
          "paper's count: independent L*T^2; cascade T^2 at the first layer (cascade-cover "
          "T*r), then T*r inherited; greedy T*r. Computed: pairs of rows really multiplied, "
          "owners included",
          report.model_name),
      {"run", "rule", "independent", "rule's", "savings", "Jaccard", "computed ind", "computed",
       "savings computed"},
      2);
  for (const Profile& profile : report.profiles) {
    const SetSummary& independent = profile.summaries[kIndependentSet];
    const Digits millions{
        .decimals = 3, .factor = 1e-6 * static_cast<double>(profile.n_sets_per_layer), .unit = "M"};
    each_rule(report, profile, [&](size_t k, const std::string& rule) {
      const SetSummary& summary = profile.summaries[k];
      table.add(
          {words(profile_label(profile)), words(rule),
           cell(independent.products_paper.mean(), millions),
           cell(summary.products_paper, millions), cell(summary.savings_paper, kPercent),
           cell(independent.jaccard_prev, kShare), cell(independent.products_computed, millions),
           cell(summary.products_computed, millions), cell(summary.savings_computed, kPercent)});
    });
    if (const PaperModel* paper = comparable_paper(report, profile))
      table.add({paper_label(*paper), words("cascade-paper"),
                 cell(paper->gram.independent_products, kMillions),
                 cell(paper->gram.cascade_products, kMillions),
                 cell(paper->gram.savings, kWholePercent), cell(paper->gram.jaccard, kShare),
                 no_value(), no_value(), no_value()});
  }
  return table;
}

TextTable ratio_table(const AnalyzeReport& report) {
  TextTable table(
      fmt::format("Table 7. {}: representatives of a rule over independent ones, deep layers",
                  report.model_name),
      {"run", "rule", "layers", "r independent", "r rule", "ratio"}, 2);
  const int64_t last = report.spec.n_layers - 1;
  for (const Profile& profile : report.profiles) {
    each_rule(report, profile, [&](size_t k, const std::string& rule) {
      table.add({words(profile_label(profile)), words(rule),
                 words(fmt::format("{}-{}", profile.first_deep_layer, last)),
                 cell(profile.summaries[kIndependentSet].deep_n_reps, kCount),
                 cell(profile.summaries[k].deep_n_reps, kCount),
                 cell(profile.summaries[k].deep_ratio, kRatio)});
    });
    if (const PaperModel* paper = comparable_paper(report, profile))
      table.add({paper_label(*paper), words("cascade-paper"),
                 words(fmt::format("{}-{}", paper->deep.first_layer, paper->n_layers - 1)),
                 cell(int64_t{paper->deep.n_reps_independent}),
                 cell(int64_t{paper->deep.n_reps_cascade}), cell(paper->deep.ratio, kRatio)});
  }
  return table;
}

// Empty where no cascade was asked for: it is about inherited sets.
TextTable scaling_table(const AnalyzeReport& report) {
  TextTable table(
      fmt::format("Table 8. {}: {} by length, with r as measured (mean inherited count). T/r is "
                  "the paper's speedup, savings its 1 - r/T: of a layer that inherits. Whole pass: "
                  "independent products over the rule's, the first layer included",
                  report.model_name, report.leading_kind().name),
      {"run", "T", "mean r", "T/r", "savings", "whole pass", "savings computed"});
  if (report.leading() != kCascadeSet) return table;
  for (const Profile& profile : report.profiles) {
    const SetSummary& cascade = profile.summaries[kCascadeSet];
    const auto n = static_cast<double>(profile.n_tokens);
    const double n_reps = cascade.n_inherited.mean();
    const bool has_r = cascade.n_inherited.count() > 0;  // a model of one layer inherits nothing
    const bool compares = cascade.products_paper.mean() > 0;  // nothing is compared at tau 0
    table.add({words(profile_label(profile)), cell(profile.n_tokens),
               cell(cascade.n_inherited, kCount), has_r ? cell(n / n_reps, kCount) : no_value(),
               has_r ? cell(1 - n_reps / n, kPercent) : no_value(),
               compares ? cell(profile.summaries[kIndependentSet].products_paper.mean() /
                                   cascade.products_paper.mean(),
                               {.decimals = 2, .unit = "x"})
                        : no_value(),
               cell(cascade.savings_computed, kPercent)});
    const PaperModel* paper = paper_of_settings(report, profile);
    if (paper == nullptr || !report.leads_with(SelectRule::kCascadePaper)) continue;
    for (const PaperModel::Scaling& row : paper->scaling)
      if (row.n_tokens == profile.n_tokens)
        table.add({words(std::string(paper->name) + " paper, estimate"),
                   cell(int64_t{row.n_tokens}), cell(int64_t{row.n_reps}),
                   cell(row.speedup, kCount), cell(row.savings, kWholePercent), no_value(),
                   no_value()});
  }
  return table;
}

TextTable overview_table(const AnalyzeReport& report) {
  TextTable table(
      fmt::format("Table 9. {}: summary, {}; turnover: least to largest of the deep layers",
                  report.model_name, report.leading_kind().name),
      {"run", "L", "d", "mean r ind", "Jaccard", "Gram savings", "deep turnover", "windows"});
  for (const Profile& profile : report.profiles) {
    const SetSummary& leading = profile.summaries[report.leading()];
    table.add({words(profile_label(profile)), cell(report.spec.n_layers), cell(report.spec.d_model),
               cell(profile.summaries[kIndependentSet].n_reps, kCount),
               cell(profile.summaries[kIndependentSet].jaccard_prev, kShare),
               cell(leading.savings_paper, kPercent), turnover_range(leading),
               cell(profile.n_windows)});
    const PaperModel* paper = comparable_paper(report, profile);
    if (paper == nullptr) continue;
    const bool same_rule = comparable_paper_cascade(report, profile) != nullptr;
    table.add({paper_label(*paper), cell(int64_t{paper->n_layers}), cell(int64_t{paper->d_model}),
               cell(int64_t{paper->mean_n_reps}), cell(paper->gram.jaccard, kShare),
               same_rule ? cell(paper->gram.savings, kWholePercent) : no_value(),
               same_rule ? turnover_range(paper->deep.least_turnover, paper->deep.largest_turnover)
                         : no_value(),
               cell(int64_t{1})});
  }
  return table;
}

// Section 6.6 of the paper, with measured r at every layer instead of one mean.
TextTable cost_table(const AnalyzeReport& report) {
  TextTable table(
      fmt::format(
          "Cost model (section 6.6 of the paper), measured r, independent and {}: a whole "
          "pass in 10^9 multiply-adds, its FLOPs. Selection: Gram products times row width; "
          "attention: 2*r^2*head_dim*heads per layer",
          report.leading_kind().name),
      {"run", "selection ind", "selection rule's", "r x r ind", "r x r rule's", "dense attention"});
  const ModelSpec& spec = report.spec;
  for (const Profile& profile : report.profiles) {
    const auto n = static_cast<double>(profile.n_tokens);
    const auto sets = static_cast<double>(profile.n_sets_per_layer);
    const double per_product = 1e-9 * static_cast<double>(profile.row_width) * sets;
    const double per_pair = 2e-9 * static_cast<double>(spec.query_width());
    const auto cost = [](const RunningMean& figure, double factor) {
      return cell(figure, {.decimals = 3, .factor = factor});
    };
    const SetSummary& independent = profile.summaries[kIndependentSet];
    const SetSummary& leading = profile.summaries[report.leading()];
    table.add({words(profile_label(profile)),
               cell(independent.products_paper.mean() * per_product, {.decimals = 3}),
               cost(leading.products_paper, per_product), cost(independent.rep_pairs, per_pair),
               cost(leading.rep_pairs, per_pair),
               cell(n * n * static_cast<double>(spec.n_layers) * per_pair, {.decimals = 3})});
  }
  return table;
}

}  // namespace

const PaperModel* comparable_paper(const AnalyzeReport& report, const Profile& profile) {
  return profile.n_tokens == kPaperTokens ? paper_of_settings(report, profile) : nullptr;
}

const PaperModel* comparable_paper_cascade(const AnalyzeReport& report, const Profile& profile) {
  return report.leads_with(SelectRule::kCascadePaper) ? comparable_paper(report, profile) : nullptr;
}

std::string profile_label(const Profile& profile) {
  return fmt::format("tau {}, T {}, {}", profile.tau, profile.n_tokens,
                     row_space_name(profile.space));
}

TextTable covering_table(const AnalyzeReport& report) {
  TextTable table(
      "Covering number: mean representatives per layer against tau; share: independent over T",
      {"run", "tau", "r independent", "share", "r greedy", "r " + report.leading_kind().name});
  const auto same_tau = [&](const Profile& p) { return p.tau == report.profiles[0].tau; };
  if (std::all_of(report.profiles.begin(), report.profiles.end(), same_tau)) return table;
  for (const Profile& profile : report.profiles) {
    const RunningMean& n_reps = profile.summaries[kIndependentSet].n_reps;
    table.add({words(profile_label(profile)), cell(profile.tau, {.decimals = 2}),
               cell(n_reps, kCount),
               cell(n_reps, {.decimals = 3, .factor = 1 / static_cast<double>(profile.n_tokens)}),
               cell(profile.summaries[kGreedySet].n_reps, kCount),
               cell(profile.summaries[report.leading()].n_reps, kCount)});
  }
  return table;
}

std::vector<TextTable> summary_tables(const AnalyzeReport& report) {
  return {gram_table(report), ratio_table(report), scaling_table(report), overview_table(report),
          cost_table(report)};
}

}  // namespace sluice::impl::cli
