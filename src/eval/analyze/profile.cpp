#include "eval/analyze/profile.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "select/rules.h"

namespace sluice::impl {
namespace {

constexpr std::array kSpaces = {RowSpace::kResidual, RowSpace::kNormed, RowSpace::kKey};

void add_mean(RunningMean& to, const RunningMean& from) {
  if (from.count() > 0) to.add(from.mean());
}

// Layers of a window: the mean, sum, least and largest of one figure of one set.
class OverLayers {
 public:
  OverLayers(const std::vector<LayerFigures>& layers, size_t set, int64_t first)
      : layers_(layers), set_(set), first_(static_cast<size_t>(first)) {}

  template <typename Visit>
  void each(RunningMean SetFigures::*figure, const Visit& visit) const {
    for (size_t l = first_; l < layers_.size(); ++l) {
      const RunningMean& x = layers_[l].sets[set_].*figure;
      if (x.count() > 0) visit(x.mean());
    }
  }
  RunningMean mean(RunningMean SetFigures::*figure) const {
    RunningMean mean;
    each(figure, [&](double x) { mean.add(x); });
    return mean;
  }
  double sum(RunningMean SetFigures::*figure) const {
    double sum = 0;
    each(figure, [&](double x) { sum += x; });
    return sum;
  }
  // Nothing to add where no layer has the figure.
  void add_least(RunningMean SetFigures::*figure, RunningMean& to) const {
    double least = std::numeric_limits<double>::infinity();
    each(figure, [&](double x) { least = std::min(least, x); });
    if (std::isfinite(least)) to.add(least);
  }
  void add_largest(RunningMean SetFigures::*figure, RunningMean& to) const {
    double largest = -std::numeric_limits<double>::infinity();
    each(figure, [&](double x) { largest = std::max(largest, x); });
    if (std::isfinite(largest)) to.add(largest);
  }

 private:
  const std::vector<LayerFigures>& layers_;
  size_t set_, first_;
};

void add_ratio(RunningMean& to, double part, double whole, bool saved) {
  if (whole > 0) to.add(saved ? 1 - part / whole : part / whole);
}

void summarise(const std::vector<LayerFigures>& window, size_t set, int64_t first_deep_layer,
               SetSummary& to) {
  const OverLayers all(window, set, 0), reference(window, kIndependentSet, 0);
  add_mean(to.n_reps, all.mean(&SetFigures::n_reps));
  add_mean(to.n_inherited, all.mean(&SetFigures::n_inherited));
  add_mean(to.jaccard_prev, all.mean(&SetFigures::jaccard_prev));
  add_mean(to.recall, all.mean(&SetFigures::recall));
  add_mean(to.precision, all.mean(&SetFigures::precision));
  add_mean(to.jaccard, all.mean(&SetFigures::jaccard));
  add_mean(to.missed, all.mean(&SetFigures::missed));
  add_mean(to.uncovered, all.mean(&SetFigures::uncovered));
  add_mean(to.owner_cosine_mean, all.mean(&SetFigures::owner_cosine_mean));
  add_mean(to.copy_error, all.mean(&SetFigures::copy_error));
  add_mean(to.violations_tau, all.mean(&SetFigures::violations_tau));
  all.add_least(&SetFigures::owner_cosine_min, to.owner_cosine_min);
  all.add_largest(&SetFigures::missed, to.missed_max);

  const double paper = all.sum(&SetFigures::products_paper);
  const double computed = all.sum(&SetFigures::products_computed);
  to.products_paper.add(paper);
  to.products_computed.add(computed);
  add_ratio(to.savings_paper, paper, reference.sum(&SetFigures::products_paper), true);
  add_ratio(to.savings_computed, computed, reference.sum(&SetFigures::products_computed), true);
  to.rep_pairs.add(all.sum(&SetFigures::rep_pairs));

  const OverLayers deep(window, set, first_deep_layer);
  const OverLayers deep_reference(window, kIndependentSet, first_deep_layer);
  add_mean(to.deep_n_reps, deep.mean(&SetFigures::n_reps));
  add_ratio(to.deep_ratio, deep.sum(&SetFigures::n_reps), deep_reference.sum(&SetFigures::n_reps),
            false);
  deep.add_least(&SetFigures::turnover, to.deep_turnover_min);
  deep.add_largest(&SetFigures::turnover, to.deep_turnover_max);
}

}  // namespace

std::string_view row_space_name(RowSpace space) {
  switch (space) {
    case RowSpace::kResidual:
      return "residual";
    case RowSpace::kNormed:
      return "normed";
    case RowSpace::kKey:
      return "key";
  }
  SLUICE_CHECK(!"unknown space");
}

std::optional<RowSpace> row_space_of(std::string_view name) {
  for (const RowSpace space : kSpaces)
    if (row_space_name(space) == name) return space;
  return {};
}

std::vector<SetKind> set_kinds(const std::vector<SelectRule>& rules) {
  std::vector<SetKind> kinds;
  for (const SelectRule rule : {SelectRule::kIndependent, SelectRule::kGreedy})
    kinds.push_back({std::string(rule_name(rule)), rule});
  for (const SelectRule rule : rules)
    if (inherits(rule)) kinds.push_back({std::string(rule_name(rule)), rule});
  kinds.push_back({"random", SelectRule::kFixed, true});
  kinds.push_back({"unvalidated", SelectRule::kFixed});
  return kinds;
}

size_t leading_set(const std::vector<SelectRule>& rules) {
  SLUICE_CHECK(!rules.empty());
  if (std::any_of(rules.begin(), rules.end(), inherits)) return kCascadeSet;
  return rules.front() == SelectRule::kIndependent ? kIndependentSet : kGreedySet;
}

void add_figures(const std::vector<SetFigures>& from, std::vector<SetFigures>& to) {
  to.resize(from.size());
  for (size_t k = 0; k < from.size(); ++k)
    for (const SetFigureName& entry : kSetFigureNames)
      add_mean(to[k].*entry.figure, from[k].*entry.figure);
}

void Profile::add_window(const std::vector<LayerFigures>& window) {
  ++n_windows;
  layers.resize(window.size());
  for (size_t l = 0; l < window.size(); ++l) {
    add_figures(window[l].sets, layers[l].sets);
    layers[l].heads.resize(window[l].heads.size());
    for (size_t h = 0; h < window[l].heads.size(); ++h) {
      add_mean(layers[l].heads[h].n_reps_independent, window[l].heads[h].n_reps_independent);
      add_mean(layers[l].heads[h].n_reps_cascade, window[l].heads[h].n_reps_cascade);
    }
  }
  if (window.empty()) return;
  summaries.resize(window[0].sets.size());
  for (size_t k = 0; k < summaries.size(); ++k)
    summarise(window, k, first_deep_layer, summaries[k]);
}

}  // namespace sluice::impl
