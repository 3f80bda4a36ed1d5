#include "eval/analyze/plan_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "eval/analyze/analyze.h"
#include "eval/analyze/analyze_results.h"
#include "eval/analyze/profile_matrices.h"
#include "eval/analyze/profile_sets.h"
#include "eval/compare/attention_work.h"
#include "eval/text/windows.h"
#include "ranks/divide.h"
#include "select/inherit.h"
#include "select/rules.h"

namespace sluice::impl {
namespace {

class PlanProfiler {
 public:
  PlanProfiler(Model& model, const ProjectionNorms& norms, const AttentionPlan& plan,
               int64_t n_tokens)
      : model_(model),
        norms_(norms),
        plan_(plan),
        n_tokens_(n_tokens),
        cache_(model.make_cache(1, n_tokens)) {}

  // Of no window yet.
  PlanProfile begun() const {
    PlanProfile profile;
    profile.n_tokens = n_tokens_;
    for (const LayerPlan& layer : plan_.layers) {
      PlanLayerProfile& to = profile.layers.emplace_back();
      if (layer.clusters()) to.taus = layer.taus();
    }
    return profile;
  }

  // Of this window alone.
  PlanProfile look_at(WholeWindows& window) {
    profile_ = begun();
    selectors_.clear();
    above_ = nullptr;
    chooser_ = nullptr;
    AttentionWork all;
    cache_.truncate(0);
    observed_forward(model_, window.tokens(), cache_, [&](const AttentionSeen& seen) {
      add_layer(seen, all);
      window.layer_done();
    });
    ++profile_.n_windows;
    profile_.keys_read.add(all.keys_read_fraction());
    profile_.clusters_fraction.add(all.clusters_fraction());
    return std::move(profile_);
  }

 private:
  // One layer of the current window.
  void add_layer(const AttentionSeen& seen, AttentionWork& all) {
    const LayerPlan& layer = plan_.layers[static_cast<size_t>(seen.layer)];
    PlanLayerProfile& to = profile_.layers[static_cast<size_t>(seen.layer)];
    const bool dense = layer.mode == AttentionMode::kDense;
    if (!dense && !layer.reuse) chooser_ = &layer;
    const Selector* selector = dense ? nullptr : layer.reuse ? above_ : select(layer, seen);
    const LayerWork done{.plan = &layer,
                         .selector = selector,
                         .above = above_,
                         .n_kv_heads = model_.spec().n_kv_heads,
                         .n_tokens = seen.residual.rows(),
                         .window = model_.spec().window(seen.layer)};
    AttentionWork alone;
    alone.add_layer(done);
    all.add_layer(done);
    to.keys_read.add(alone.keys_read_fraction());
    to.clusters_fraction.add(alone.clusters_fraction());
    if (!to.taus.empty()) measure(layer, seen, *selector, to);
    if (selector != nullptr) above_ = selector;
  }

  static const ConstTensor& rows_of(const LayerPlan& layer, const AttentionSeen& seen) {
    return layer.space == SelectSpace::kResidual ? seen.residual : seen.input;
  }

  // The sets of a layer that chooses its own. A selection basis would find the same.
  const Selector* select(const LayerPlan& layer, const AttentionSeen& seen) {
    selectors_.push_back(model_.backend().make_selector(
        {.rule = above_ != nullptr ? layer.rule : first_rule(layer.rule),
         .owner = OwnerKind::kEarlier,
         .taus = layer.taus(),
         .d_model = model_.spec().d_model,
         .sinks = layer.sinks,
         .outlier_ratio = layer.outlier_ratio,
         .want_cosines = true}));
    extend_from(*selectors_.back(), above_, {rows_of(layer, seen), seen.residual});
    return selectors_.back().get();
  }

  void measure(const LayerPlan& layer, const AttentionSeen& seen, const Selector& selector,
               PlanLayerProfile& to) const {
    const AttentionOutputs outputs =
        attention_outputs(model_.backend(), model_.spec(), norms_, seen);
    const AttentionScores scores = attention_scores(model_.backend(), model_.spec(), seen);
    std::vector<SetFigures> window(to.taus.size());
    for (size_t i = 0; i < to.taus.size(); ++i) {
      const TokenSet& set = selector.sets()[nearest_set(selector.spec().taus, to.taus[i])];
      const TokenSet* before = above_ != nullptr
                                   ? &above_->sets()[nearest_set(above_->spec().taus, to.taus[i])]
                                   : nullptr;
      const auto independent =
          model_.backend().make_selector({.rule = SelectRule::kIndependent,
                                          .owner = OwnerKind::kEarlier,
                                          .taus = {to.taus[i]},
                                          .d_model = model_.spec().d_model,
                                          .sinks = chooser_->sinks,
                                          .outlier_ratio = chooser_->outlier_ratio});
      extend_from(*independent, nullptr, {rows_of(*chooser_, seen), seen.residual});
      SetFigures& figures = window[i];
      count_set({.set = set,
                 .independent = independent->sets()[0],
                 .before = before,
                 .rule = layer.reuse ? SelectRule::kFixed : selector.spec().rule,
                 .products = layer.reuse ? 0 : selector.products()},
                figures);
      measure_attention(outputs, {0, outputs.n_heads}, set, !layer.reuse, figures);
      std::vector<SetFigures> pair = {{}, std::move(figures)};
      measure_matrices(scores, {0, outputs.n_heads}, {independent->sets()[0], set}, pair);
      figures = std::move(pair[1]);
      // Cosines of a set that is reused are those of the rows it was chosen from.
      if (layer.reuse)
        figures.uncovered = figures.owner_cosine_min = figures.owner_cosine_mean = {};
    }
    add_figures(window, to.sets);
  }

  Model& model_;
  const ProjectionNorms& norms_;
  const AttentionPlan& plan_;
  int64_t n_tokens_;
  KvCache cache_;
  PlanProfile profile_;                               // of the window
  std::vector<std::unique_ptr<Selector>> selectors_;  // of the window
  const Selector* above_ = nullptr;                   // of the selected layer before
  const LayerPlan* chooser_ = nullptr;                // the last that chose its own sets
};

}  // namespace

void PlanProfile::add_window(const PlanProfile& window) {
  n_windows += window.n_windows;
  keys_read.add(window.keys_read.mean());
  clusters_fraction.add(window.clusters_fraction.mean());
  for (size_t l = 0; l < layers.size(); ++l) {
    const PlanLayerProfile& from = window.layers[l];
    layers[l].keys_read.add(from.keys_read.mean());
    layers[l].clusters_fraction.add(from.clusters_fraction.mean());
    add_figures(from.sets, layers[l].sets);
  }
}

void check_profiled_plan(const AttentionPlan& plan, const ModelSpec& spec) {
  if (!spec.causal)
    throw Error(spec.family + " is an encoder, a plan is analyzed for causal models",
                "leave --plan out");
  for (size_t l = 0; l < plan.layers.size(); ++l)
    if (plan.layers[l].mode == AttentionMode::kPaper)
      throw Error(fmt::format("layer {} of the plan has attention paper, which analyze --plan does "
                              "not follow",
                              l),
                  "--select cascade-paper shows the paper's sets");
}

PlanProfile profile_plan(Model& model, const ProjectionNorms& norms, TextStream& text,
                         const AttentionPlan& plan, const PlanProfileOptions& options,
                         const std::function<void(double)>& progress) {
  check_profiled_plan(plan, model.spec());
  AttentionPlan whole = plan;
  whole.layers.resize(static_cast<size_t>(model.spec().n_layers));
  PlanProfiler profiler(model, norms, whole, options.n_tokens);
  PlanProfile profile = profiler.begun();
  WholeWindows windows(text, {options.n_tokens, options.n_windows, model.spec().n_layers},
                       progress);
  divide<PlanProfile>(
      *options.communicator, [&] { return windows.next(); },
      [&] { return profiler.look_at(windows); },
      [&](const PlanProfile& window) { profile.add_window(window); });
  return profile;
}

nlohmann::json plan_profile_json(const PlanProfile& profile, const AttentionPlan& plan) {
  using nlohmann::json;
  json out = {
      {"tau", nullptr},  // heads have their own
      {"space", nullptr},      {"n_tokens", profile.n_tokens}, {"n_windows", profile.n_windows},
      {"rows", json::array()}, {"layers", json::array()},      {"summary", json::object()}};
  for (size_t l = 0; l < profile.layers.size(); ++l) {
    const PlanLayerProfile& layer = profile.layers[l];
    json entry = {{"layer", l}};
    for (size_t i = 0; i < layer.taus.size(); ++i) {
      json row = set_json(layer.sets[i]);
      row["layer"] = l;
      row["tau"] = layer.taus[i];
      row["rule"] = plan.layers[l].reuse ? "reused" : rule_name(plan.layers[l].rule);
      out["rows"].push_back(std::move(row));
    }
    put_figure(entry, "keys_read_fraction", layer.keys_read);
    put_figure(entry, "clusters_fraction", layer.clusters_fraction);
    out["layers"].push_back(std::move(entry));
  }
  put_figure(out["summary"], "keys_read_fraction", profile.keys_read);
  put_figure(out["summary"], "clusters_fraction", profile.clusters_fraction);
  return out;
}

}  // namespace sluice::impl
