// What `analyze` finds: figures about the sets of every layer, as means over windows of a text.
// docs/algorithm.md, section 2, "Counters"; keys of results.json in docs/results.md.

#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/select.h"
#include "eval/compare/running_mean.h"

namespace sluice::impl {

// The rows that are compared: docs/algorithm.md, section 1.
enum class RowSpace : uint8_t { kResidual, kNormed, kKey };
std::string_view row_space_name(RowSpace space);  // "residual", "normed", "key"
std::optional<RowSpace> row_space_of(std::string_view name);

// One set at one layer; figures that a layer does not have (turnover at the first) stay empty.
struct SetFigures {
  RunningMean n_reps, rep_pairs;                           // rep_pairs: n_reps^2
  RunningMean jaccard_prev, intersection_prev;             // with its like of the layer before
  RunningMean n_inherited, additions, removals, turnover;  // from that set to this one
  RunningMean recall, precision, jaccard, missed;          // against this layer's independent set
  RunningMean uncovered, owner_cosine_min, owner_cosine_mean;
  RunningMean products_paper, products_computed;  // pairs of rows
  // ||A - A'|| / ||A|| of the layer's attention output A, when every token outside the set has its
  // owner's instead, uncovered ones too.
  RunningMean copy_error;
  // Tokens outside the set that have an owner, and those of them whose owner is at the threshold.
  RunningMean n_outside, n_covered;
  // ||Attn_h(t) - Attn_h(owner)|| over the tokens outside and heads, and its share of
  // ||Attn_h(t)||.
  RunningMean attention_error_mean, attention_error_max, attention_error_relative;
  // Proposition 2 of the paper, with its tau and with the pair's own distance, and how often the
  // error is above it, over covered tokens: it speaks of no others.
  RunningMean bound_tau, bound_distance, violations_tau, violations_distance;
  // Proposition 3, of the layer before's redundant tokens and their owners (profile_depth.h): the
  // growth of their distance; the share that were equal and part; the share that stay redundant, by
  // the proposition's condition and as found.
  RunningMean lipschitz_mean, lipschitz_max, parted, persistence_predicted, persistence;
  // Between its attention matrix and the independent set's, and dense attention's
  // (profile_matrices.h): total variation per row, and the relative Frobenius norm.
  RunningMean matrix_tv_independent, matrix_frobenius_independent;
  RunningMean matrix_tv_dense, matrix_frobenius_dense;
};

struct SetFigureName {
  std::string_view name;  // in results.json
  RunningMean SetFigures::*figure;
};
inline constexpr std::array kSetFigureNames = {
    SetFigureName{"n_reps", &SetFigures::n_reps},
    SetFigureName{"rep_pairs", &SetFigures::rep_pairs},
    SetFigureName{"jaccard_prev", &SetFigures::jaccard_prev},
    SetFigureName{"intersection_prev", &SetFigures::intersection_prev},
    SetFigureName{"n_inherited", &SetFigures::n_inherited},
    SetFigureName{"additions", &SetFigures::additions},
    SetFigureName{"removals", &SetFigures::removals},
    SetFigureName{"turnover", &SetFigures::turnover},
    SetFigureName{"recall_vs_independent", &SetFigures::recall},
    SetFigureName{"precision_vs_independent", &SetFigures::precision},
    SetFigureName{"jaccard_vs_independent", &SetFigures::jaccard},
    SetFigureName{"missed_vs_independent", &SetFigures::missed},
    SetFigureName{"uncovered", &SetFigures::uncovered},
    SetFigureName{"owner_cosine_min", &SetFigures::owner_cosine_min},
    SetFigureName{"owner_cosine_mean", &SetFigures::owner_cosine_mean},
    SetFigureName{"products_paper", &SetFigures::products_paper},
    SetFigureName{"products_computed", &SetFigures::products_computed},
    SetFigureName{"copy_error", &SetFigures::copy_error},
    SetFigureName{"n_outside", &SetFigures::n_outside},
    SetFigureName{"n_covered", &SetFigures::n_covered},
    SetFigureName{"attention_error_mean", &SetFigures::attention_error_mean},
    SetFigureName{"attention_error_max", &SetFigures::attention_error_max},
    SetFigureName{"attention_error_relative", &SetFigures::attention_error_relative},
    SetFigureName{"bound_tau", &SetFigures::bound_tau},
    SetFigureName{"bound_distance", &SetFigures::bound_distance},
    SetFigureName{"violations_tau", &SetFigures::violations_tau},
    SetFigureName{"violations_distance", &SetFigures::violations_distance},
    SetFigureName{"lipschitz_mean", &SetFigures::lipschitz_mean},
    SetFigureName{"lipschitz_max", &SetFigures::lipschitz_max},
    SetFigureName{"parted", &SetFigures::parted},
    SetFigureName{"persistence_predicted", &SetFigures::persistence_predicted},
    SetFigureName{"persistence", &SetFigures::persistence},
    SetFigureName{"matrix_tv_vs_independent", &SetFigures::matrix_tv_independent},
    SetFigureName{"matrix_frobenius_vs_independent", &SetFigures::matrix_frobenius_independent},
    SetFigureName{"matrix_tv_vs_dense", &SetFigures::matrix_tv_dense},
    SetFigureName{"matrix_frobenius_vs_dense", &SetFigures::matrix_frobenius_dense},
};

// Adds the means of `from`, set by set, as one number each.
void add_figures(const std::vector<SetFigures>& from, std::vector<SetFigures>& to);

// One set over all layers.
struct SetSummary {
  RunningMean n_reps, n_inherited, jaccard_prev;  // means over layers
  RunningMean recall, precision, jaccard, missed, uncovered, owner_cosine_min, owner_cosine_mean;
  RunningMean missed_max;                         // of any layer
  RunningMean products_paper, products_computed;  // sums over layers
  RunningMean savings_paper, savings_computed;    // 1 - products / those of `independent`
  RunningMean rep_pairs;                          // sum: what r x r attention scores, per head
  // Over the deep layers; ratio is to `independent`.
  RunningMean deep_n_reps, deep_ratio, deep_turnover_min, deep_turnover_max;
  RunningMean copy_error, violations_tau;  // means over layers
};

struct SetSummaryName {
  std::string_view name;
  RunningMean SetSummary::*figure;
};
inline constexpr std::array kSetSummaryNames = {
    SetSummaryName{"mean_n_reps", &SetSummary::n_reps},
    SetSummaryName{"mean_n_inherited", &SetSummary::n_inherited},
    SetSummaryName{"mean_jaccard_prev", &SetSummary::jaccard_prev},
    SetSummaryName{"mean_recall_vs_independent", &SetSummary::recall},
    SetSummaryName{"mean_precision_vs_independent", &SetSummary::precision},
    SetSummaryName{"mean_jaccard_vs_independent", &SetSummary::jaccard},
    SetSummaryName{"mean_missed_vs_independent", &SetSummary::missed},
    SetSummaryName{"max_missed_vs_independent", &SetSummary::missed_max},
    SetSummaryName{"mean_uncovered", &SetSummary::uncovered},
    SetSummaryName{"owner_cosine_min", &SetSummary::owner_cosine_min},
    SetSummaryName{"owner_cosine_mean", &SetSummary::owner_cosine_mean},
    SetSummaryName{"products_paper", &SetSummary::products_paper},
    SetSummaryName{"products_computed", &SetSummary::products_computed},
    SetSummaryName{"gram_savings_paper", &SetSummary::savings_paper},
    SetSummaryName{"gram_savings_computed", &SetSummary::savings_computed},
    SetSummaryName{"rep_pairs", &SetSummary::rep_pairs},
    SetSummaryName{"deep_n_reps", &SetSummary::deep_n_reps},
    SetSummaryName{"deep_ratio", &SetSummary::deep_ratio},
    SetSummaryName{"deep_turnover_min", &SetSummary::deep_turnover_min},
    SetSummaryName{"deep_turnover_max", &SetSummary::deep_turnover_max},
    SetSummaryName{"mean_copy_error", &SetSummary::copy_error},
    SetSummaryName{"mean_violations_tau", &SetSummary::violations_tau},
};

// The sets that are followed down the layers, in this order: `independent`, `greedy`, the cascades
// among the rules asked for, and two controls made from the leading set: `random`, a set of its
// size drawn anew at every layer, and `unvalidated`, its first layer's set kept to the end.
struct SetKind {
  std::string name;
  SelectRule rule;
  bool is_random = false;
};
inline constexpr size_t kIndependentSet = 0, kGreedySet = 1, kCascadeSet = 2;
std::vector<SetKind> set_kinds(const std::vector<SelectRule>& rules);
// The set that summaries speak of, by its place there: the first cascade asked for, and where none
// is, the first rule.
size_t leading_set(const std::vector<SelectRule>& rules);

struct HeadFigures {
  RunningMean n_reps_independent, n_reps_cascade;  // cascade: the leading set
};

// In key space every key/value head has its own sets, and a layer's figures are means over heads.
struct LayerFigures {
  std::vector<SetFigures> sets;    // in the order of set_kinds()
  std::vector<HeadFigures> heads;  // (n_kv_heads) in key space, else empty

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(sets, heads);
  }
};

struct Profile {
  double tau = 0;
  int64_t n_tokens = 0;  // of a window
  RowSpace space = RowSpace::kResidual;
  int64_t row_width = 0;         // elements of a row that is compared
  int64_t n_sets_per_layer = 1;  // key/value heads in key space
  int64_t first_deep_layer = 0;
  int64_t n_windows = 0;
  std::vector<LayerFigures> layers;   // (n_layers)
  std::vector<SetSummary> summaries;  // in the order of set_kinds()

  size_t random_set() const { return summaries.size() - 2; }
  // Adds a window: per layer, figures over its heads, whose means count once.
  void add_window(const std::vector<LayerFigures>& window);
};

}  // namespace sluice::impl
