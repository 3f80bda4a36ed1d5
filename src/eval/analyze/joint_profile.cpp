#include "eval/analyze/joint_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "eval/analyze/analyze.h"
#include "eval/calibrate.h"
#include "eval/results.h"
#include "eval/text/windows.h"
#include "select/counters.h"
#include "select/inherit.h"
#include "select/rules.h"

namespace sluice::impl {
namespace {

// Samples of each selector, per window and layer.
constexpr int kRounds = 5;

using SharedBasis = std::shared_ptr<const SelectionBasis>;

// The first directions of a layer's basis.
SharedBasis first_directions(const Basis& basis, int64_t rank) {
  const auto end = basis.vectors.begin() + rank * basis.d;
  return std::make_shared<SelectionBasis>(rank, basis.d,
                                          std::vector<float>(basis.vectors.begin(), end));
}

bool same_sets(const Selector& a, const Selector& b) {
  const TokenSet &x = a.sets()[0], &y = b.sets()[0];
  return x.status == y.status && x.owner == y.owner;
}

using Samples = std::vector<std::vector<double>>;  // (n_selectors, n_samples) ms

// Selectors: without a basis, then two for each rank: kAlways and kWherePays.
JointRankTimes times_of(const Samples& samples, size_t rank) {
  const auto of = [&](size_t selector) -> JointTimes {
    return {.seconds = 1e-3 * median(samples[selector]),
            .speedup = ratio_of(samples[0], samples[selector])};
  };
  return {.always = of(1 + 2 * rank), .where_pays = of(2 + 2 * rank)};
}

void add_to(RunningMean& fraction, const Selector& selector) {
  const auto dropped = static_cast<double>(selector.pairs_dropped());
  const double pairs = static_cast<double>(selector.products()) + dropped;
  fraction.add(pairs > 0 ? dropped / pairs : 0);
}

class JointProfiler {
 public:
  JointProfiler(Model& model, const Bases& bases, const JointOptions& options)
      : model_(model), cache_(model.make_cache(1, options.n_tokens)) {
    profile_.options = options;
    profile_.d_model = model.spec().d_model;
    const BasisInput input = selection_input(options.space);
    for (int64_t layer = 0; layer < model.spec().n_layers; ++layer) {
      profile_.layers.emplace_back();
      bases_.emplace_back();
      for (const int64_t rank : options.ranks) {
        const Basis* basis = bases.find(layer, input);
        SLUICE_CHECK(basis != nullptr && rank <= basis->rank);
        JointFigures figures;
        figures.rank = rank;
        figures.energy = basis->energy(rank);
        profile_.layers.back().ranks.push_back(figures);
        bases_.back().push_back(first_directions(*basis, rank));
      }
    }
    samples_.resize(profile_.layers.size());
  }

  void add_window(std::span<const int32_t> tokens, const std::function<void()>& layer_done) {
    before_.reset();
    cache_.truncate(0);
    observed_forward(model_, tokens, cache_, [&](const AttentionSeen& seen) {
      add_layer(seen);
      layer_done();
    });
    ++profile_.n_windows;
  }

  JointProfile take() {
    Samples all = samples_[0];  // sums over layers, run by run
    for (size_t layer = 0; layer < profile_.layers.size(); ++layer) {
      const Samples& samples = samples_[layer];
      JointLayer& out = profile_.layers[layer];
      out.seconds = 1e-3 * median(samples[0]);
      for (size_t i = 0; i < out.ranks.size(); ++i) out.ranks[i].times = times_of(samples, i);
      for (size_t s = 0; layer > 0 && s < all.size(); ++s)
        for (size_t i = 0; i < all[s].size(); ++i) all[s][i] += samples[s][i];
    }
    profile_.seconds = 1e-3 * median(all[0]);
    for (size_t i = 0; i < profile_.options.ranks.size(); ++i)
      profile_.times.push_back(times_of(all, i));
    return std::move(profile_);
  }

 private:
  // Without a basis, then with one of each rank: always, and where that pays.
  std::vector<std::unique_ptr<Selector>> make_selectors(size_t layer) const {
    SelectorSpec spec = profile_.options.selector(model_, before_.get());
    std::vector<std::unique_ptr<Selector>> out;
    out.push_back(model_.backend().make_selector(spec));
    for (const SharedBasis& basis : bases_[layer])
      for (const BasisUse use : {BasisUse::kAlways, BasisUse::kWherePays}) {
        spec.basis = basis;
        spec.basis_use = use;
        out.push_back(model_.backend().make_selector(spec));
      }
    return out;
  }

  void add_layer(const AttentionSeen& seen) {
    const auto layer = static_cast<size_t>(seen.layer);
    auto selectors = make_selectors(layer);
    const ConstTensor& rows =
        profile_.options.space == RowSpace::kNormed ? seen.input : seen.residual;
    auto& samples = samples_[layer];
    samples.resize(selectors.size());
    run_interleaved(kRounds, selectors.size(), [&](size_t s, int round) {
      selectors[s]->reset();
      model_.backend().wait();
      const double ms = time_ms([&] {
        extend_from(*selectors[s], before_.get(), {rows, seen.residual});
        model_.backend().wait();
      });
      if (round >= 0) samples[s].push_back(ms);
    });
    for (const auto& selector : selectors) SLUICE_CHECK(same_sets(*selector, *selectors[0]));

    JointLayer& out = profile_.layers[layer];
    out.n_reps.add(static_cast<double>(n_reps(selectors[0]->sets()[0])));
    out.products.add(static_cast<double>(selectors[0]->products()));
    for (size_t i = 0; i < out.ranks.size(); ++i) {
      const Selector& always = *selectors[1 + 2 * i];
      out.ranks[i].pairs.add(static_cast<double>(always.products() + always.pairs_dropped()));
      out.ranks[i].products.add(static_cast<double>(always.products()));
      add_to(out.ranks[i].dropped_fraction, always);
      add_to(out.ranks[i].dropped_fraction_where_pays, *selectors[2 + 2 * i]);
    }
    before_ = std::move(selectors[0]);
  }

  Model& model_;
  KvCache cache_;
  JointProfile profile_;
  std::vector<std::vector<SharedBasis>> bases_;  // (n_layers, ranks)
  std::vector<Samples> samples_;                 // (n_layers)
  std::unique_ptr<Selector> before_;             // of the layer before; first: none
};

nlohmann::json times_json(const JointRankTimes& times) {
  nlohmann::json out;
  const auto add = [&](const JointTimes& of, const std::string& how) {
    out["seconds" + how] = of.seconds;
    out["speedup_vs_plain" + how] = of.speedup.middle;
    out["speedup_low" + how] = of.speedup.low;
    out["speedup_high" + how] = of.speedup.high;
  };
  add(times.always, "");
  add(times.where_pays, "_where_pays");
  return out;
}

}  // namespace

SelectorSpec JointOptions::selector(const Model& model, const Selector* before) const {
  SelectorSpec spec;
  spec.rule = before == nullptr ? first_rule(rule) : rule;
  spec.taus = {tau};
  spec.d_model = model.spec().d_model;
  spec.sinks = sinks;
  spec.outlier_ratio = outlier_ratio;
  return spec;
}

BasisInput selection_input(RowSpace space) {
  SLUICE_CHECK(space != RowSpace::kKey);
  return space == RowSpace::kNormed ? BasisInput::kSelectionNormed : BasisInput::kSelectionResidual;
}

void check_bases(const Bases& bases, int64_t n_layers, const JointOptions& options) {
  const BasisInput input = selection_input(options.space);
  for (int64_t layer = 0; layer < n_layers; ++layer) {
    const Basis* basis = bases.find(layer, input);
    if (basis == nullptr)
      throw Error(
          fmt::format("the bases have no {} for layer {}", basis_input_name(input), layer),
          fmt::format("sluice calibrate --selection {} makes them", row_space_name(options.space)));
    for (const int64_t rank : options.ranks)
      if (rank > basis->rank)
        throw Error(fmt::format("--rank {} is more than the bases' {}", rank, basis->rank),
                    "a smaller --rank, or bases of a larger one");
  }
}

Bases bases_after(Model& model, TextStream& text, int64_t n_skipped, const JointOptions& options,
                  const std::function<void(double)>& progress) {
  std::vector<int32_t> skipped;
  text.read(n_skipped, skipped);
  CalibrateOptions calibration;
  calibration.inputs = {selection_input(options.space)};
  calibration.ranks = options.ranks;
  calibration.inherit = Inheritance::kNever;
  calibration.sinks = options.sinks;
  calibration.outlier_ratio = options.outlier_ratio;
  return calibrate(model, text, calibration, progress).bases;
}

JointProfile profile_joint(Model& model, TextStream& text, const Bases& bases,
                           const JointOptions& options,
                           const std::function<void(double)>& progress) {
  JointProfiler profiler(model, bases, options);
  const auto n_steps = static_cast<double>(options.n_windows * model.spec().n_layers);
  int64_t n_done = 0;
  const auto layer_done = [&] {
    ++n_done;
    if (progress) progress(static_cast<double>(n_done) / n_steps);
  };
  std::vector<int32_t> window = first_window(text, options.n_tokens);
  for (int64_t i = 0; i < options.n_windows; ++i) {
    profiler.add_window(window, layer_done);
    window.clear();
    if (text.read(options.n_tokens, window) < options.n_tokens) break;
  }
  return profiler.take();
}

nlohmann::json describe_joint(const JointProfile& profile) {
  const JointOptions& options = profile.options;
  nlohmann::json layers = nlohmann::json::array();
  for (size_t l = 0; l < profile.layers.size(); ++l) {
    const JointLayer& layer = profile.layers[l];
    nlohmann::json ranks = nlohmann::json::array();
    for (const JointFigures& figures : layer.ranks) {
      ranks.push_back(
          {{"rank", figures.rank},
           {"energy", figures.energy},
           {"pairs", figures.pairs.mean()},
           {"products", figures.products.mean()},
           {"dropped_fraction", figures.dropped_fraction.mean()},
           {"dropped_fraction_sd", figures.dropped_fraction.standard_deviation()},
           {"dropped_fraction_where_pays", figures.dropped_fraction_where_pays.mean()}});
      ranks.back().update(times_json(figures.times));
    }
    layers.push_back({{"layer", l},
                      {"n_reps", layer.n_reps.mean()},
                      {"products", layer.products.mean()},
                      {"seconds", layer.seconds},
                      {"ranks", std::move(ranks)}});
  }
  nlohmann::json all = nlohmann::json::array();
  for (size_t i = 0; i < options.ranks.size(); ++i) {
    all.push_back({{"rank", options.ranks[i]}});
    all.back().update(times_json(profile.times[i]));
  }
  return {{"rule", rule_name(options.rule)},
          {"tau", options.tau},
          {"space", row_space_name(options.space)},
          {"n_tokens", options.n_tokens},
          {"n_windows", profile.n_windows},
          {"bases", describe_bases(profile.bases)},
          {"layers", std::move(layers)},
          {"summary", {{"seconds", profile.seconds}, {"ranks", std::move(all)}}}};
}

}  // namespace sluice::impl
