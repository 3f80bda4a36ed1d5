// What the paper's tables leave out: whether a rule finds the independent set, whether its sets
// cover the tokens, what attention loses, and sets per head.

#include <fmt/format.h>

#include <algorithm>

#include "cli/analyze/analyze_tables.h"

namespace sluice::impl::cli {
namespace {

constexpr Digits kError{.decimals = 4};

// The profile whose sets all heads share, of the same tau and length.
const Profile* shared_profile(const AnalyzeReport& report, const Profile& of_heads) {
  for (const Profile& profile : report.profiles)
    if (profile.space != RowSpace::kKey && profile.tau == of_heads.tau &&
        profile.n_tokens == of_heads.n_tokens)
      return &profile;
  return nullptr;
}

std::string counts_by_head(const std::vector<HeadFigures>& heads) {
  std::string text;
  for (const HeadFigures& head : heads)
    text += fmt::format("{}{:.0f}", text.empty() ? "" : " ", head.n_reps_cascade.mean());
  return text;
}

}  // namespace

TextTable agreement_table(const AnalyzeReport& report, const Profile& profile) {
  TextTable table(
      fmt::format("Agreement with the same layer's independent set, cover, and the error of "
                  "copying attention outputs from owners, means over layers: {}",
                  profile_label(profile)),
      {"set", "mean r", "recall", "precision", "Jaccard", "missed", "missed, worst layer",
       "uncovered", "owner cos min", "owner cos mean", "copy error", "Gram savings", "computed"});
  const std::vector<SetKind> kinds = set_kinds(report.rules);
  for (size_t k = 0; k < kinds.size(); ++k) {
    const SetSummary& s = profile.summaries[k];
    table.add({words(kinds[k].name), cell(s.n_reps, kCount), cell(s.recall, kShare),
               cell(s.precision, kShare), cell(s.jaccard, kShare), cell(s.missed, kCount),
               cell(s.missed_max, kCount), cell(s.uncovered, kPercent),
               cell(s.owner_cosine_min, kShare), cell(s.owner_cosine_mean, kShare),
               cell(s.copy_error, kShare), cell(s.savings_paper, kPercent),
               cell(s.savings_computed, kPercent)});
  }
  return table;
}

TextTable matrix_table(const AnalyzeReport& report, const Profile& profile) {
  const std::vector<SetKind> kinds = set_kinds(report.rules);
  const SetKind& cascade = kinds[leading_set(report.rules)];
  TextTable table(
      fmt::format("Attention matrices among representatives (equation 1), layer by layer: {} and "
                  "random sets against the independent set, and both against dense attention. TV: "
                  "total variation per row, 0 to 1; F: Frobenius norm of the difference over that "
                  "of the other",
                  cascade.name),
      {"layer", "TV " + cascade.name, "F " + cascade.name, "TV random", "F random",
       "TV independent, dense", "TV " + cascade.name + ", dense", "F independent, dense",
       "F " + cascade.name + ", dense"});
  for (size_t l = 0; l < profile.layers.size(); ++l) {
    const std::vector<SetFigures>& sets = profile.layers[l].sets;
    const SetFigures& own = sets[leading_set(report.rules)];
    const SetFigures& random = sets[profile.random_set()];
    const SetFigures& independent = sets[kIndependentSet];
    table.add({words(fmt::format("{}", l)), cell(own.matrix_tv_independent, kShare),
               cell(own.matrix_frobenius_independent, kShare),
               cell(random.matrix_tv_independent, kShare),
               cell(random.matrix_frobenius_independent, kShare),
               cell(independent.matrix_tv_dense, kShare), cell(own.matrix_tv_dense, kShare),
               cell(independent.matrix_frobenius_dense, kShare),
               cell(own.matrix_frobenius_dense, kShare)});
  }
  return table;
}

TextTable missed_table(const AnalyzeReport& report, const Profile& profile) {
  const std::vector<SetKind> kinds = set_kinds(report.rules);
  std::vector<std::string> columns = {"layer", "r independent"};
  for (size_t k = kGreedySet; k < kinds.size(); ++k) columns.push_back(kinds[k].name);
  TextTable table("Independent representatives that a set misses, layer by layer", columns);
  for (size_t l = 0; l < profile.layers.size(); ++l) {
    const std::vector<SetFigures>& sets = profile.layers[l].sets;
    std::vector<Cell> row = {words(fmt::format("{}", l)),
                             cell(sets[kIndependentSet].n_reps, kCount)};
    for (size_t k = kGreedySet; k < kinds.size(); ++k) row.push_back(cell(sets[k].missed, kCount));
    table.add(std::move(row));
  }
  return table;
}

TextTable bound_table(const Profile& profile) {
  TextTable table(
      "Attention error ||Attn_h(t) - Attn_h(owner)|| of the tokens outside the independent set, "
      "all heads. Covered are those whose owner is at the threshold; over them alone the bound of "
      "the paper's Proposition 2, with its tau, and with the pair's own unit distance; above: "
      "share of their errors above the bound",
      {"layer", "outside", "error", "largest", "relative", "covered", "bound, tau", "above",
       "bound, distance", "above "});
  for (size_t l = 0; l < profile.layers.size(); ++l) {
    const SetFigures& s = profile.layers[l].sets[kIndependentSet];
    table.add({words(fmt::format("{}", l)), cell(s.n_outside, kCount),
               cell(s.attention_error_mean, kError), cell(s.attention_error_max, kError),
               cell(s.attention_error_relative, kShare), cell(s.n_covered, kCount),
               cell(s.bound_tau, kCount), cell(s.violations_tau, kPercent),
               cell(s.bound_distance, kCount), cell(s.violations_distance, kPercent)});
  }
  return table;
}

TextTable persistence_table(const Profile& profile) {
  TextTable table(
      "Proposition 3: redundant tokens of the independent set of a layer and their owners, one "
      "layer on. Growth of their distance, mean and largest, which is the least Lipschitz "
      "constant; "
      "equal rows that part, for which there is none; pairs that stay redundant by the "
      "proposition's condition with that constant, and as found",
      {"layers", "growth, mean", "largest", "equal, parted", "predicted", "found"});
  for (size_t l = 1; l < profile.layers.size(); ++l) {
    const SetFigures& s = profile.layers[l].sets[kIndependentSet];
    table.add({words(fmt::format("{}-{}", l - 1, l)), cell(s.lipschitz_mean, kShare),
               cell(s.lipschitz_max, kShare), cell(s.parted, kPercent),
               cell(s.persistence_predicted, kPercent), cell(s.persistence, kPercent)});
  }
  return table;
}

TextTable head_table(const AnalyzeReport& report, const Profile& profile) {
  const std::string rule = report.leading_kind().name;
  TextTable table(
      fmt::format("Sets per key/value head on its keys against one shared set ({}, tau {}, T {}): "
                  "selection costs heads*T*r_h*head_dim and T*r*d, in 10^6 multiply-adds",
                  rule, profile.tau, profile.n_tokens),
      {"layer", "mean r_h", "r_h by head", "shared r", "per-head cost", "shared cost", "ratio"});
  const Profile* shared = shared_profile(report, profile);
  const auto n = static_cast<double>(profile.n_tokens);
  for (size_t l = 0; l < profile.layers.size(); ++l) {
    const RunningMean& per_head = profile.layers[l].sets[report.leading()].n_reps;
    const double head_cost = 1e-6 * n * per_head.mean() * static_cast<double>(profile.row_width) *
                             static_cast<double>(profile.n_sets_per_layer);
    std::vector<Cell> row = {words(fmt::format("{}", l)), cell(per_head, kCount),
                             words(counts_by_head(profile.layers[l].heads))};
    if (shared == nullptr) {
      row.insert(row.end(), {no_value(), cell(head_cost, kCount), no_value(), no_value()});
    } else {
      const RunningMean& n_reps = shared->layers[l].sets[report.leading()].n_reps;
      const double cost = 1e-6 * n * n_reps.mean() * static_cast<double>(shared->row_width);
      row.insert(row.end(), {cell(n_reps, kCount), cell(head_cost, kCount), cell(cost, kCount),
                             cell(head_cost / cost, {.decimals = 2})});
    }
    table.add(std::move(row));
  }
  return table;
}

}  // namespace sluice::impl::cli
