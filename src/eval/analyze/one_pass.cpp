#include "eval/analyze/one_pass.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "backend/exact.h"
#include "core/error.h"
#include "eval/analyze/analyze.h"
#include "eval/text/host_rows.h"
#include "eval/text/windows.h"
#include "select/inherit.h"
#include "select/rules.h"
#include "subspace/eigen.h"
#include "subspace/moments.h"
#include "subspace/running.h"

namespace sluice::impl {
namespace {

// One rank and threshold.
struct PassTrack {
  OnePassProfile profile;
  std::vector<double> basis;  // (rank, d) of the layer before; empty at the first
  int64_t updates = 0;        // of the window
  OnePassWork work;           // of the window
};

class OnePass {
 public:
  OnePass(Model& model, const JointOptions& options, const std::vector<double>& thresholds)
      : model_(model), options_(options), cache_(model.make_cache(1, options.n_tokens)) {
    for (const int64_t rank : options.ranks)
      for (const double threshold : thresholds) {
        PassTrack track;
        track.profile.rank = rank;
        track.profile.threshold = threshold;
        track.profile.layers.resize(static_cast<size_t>(model.spec().n_layers));
        tracks_.push_back(std::move(track));
      }
  }

  void add_window(std::span<const int32_t> tokens) {
    before_.reset();
    cache_.truncate(0);
    for (PassTrack& track : tracks_) {
      track.basis.clear();
      track.updates = 0;
      track.work = {};
    }
    observed_forward(model_, tokens, cache_, [&](const AttentionSeen& seen) { add_layer(seen); });
    for (PassTrack& track : tracks_) {
      track.profile.updates.add(static_cast<double>(track.updates));
      track.profile.set_alone.add(track.work.set_alone);
      track.profile.apart.add(track.work.apart);
      track.profile.together.add(track.work.together);
    }
  }

  std::vector<OnePassProfile> take() {
    std::vector<OnePassProfile> out;
    for (PassTrack& track : tracks_) out.push_back(std::move(track.profile));
    return out;
  }

 private:
  std::unique_ptr<Selector> select(const TokenRows& rows,
                                   std::shared_ptr<const SelectionBasis> basis) const {
    SelectorSpec spec = options_.selector(model_, before_.get());
    spec.basis = std::move(basis);
    spec.basis_use = BasisUse::kAlways;
    auto selector = model_.backend().make_selector(spec);
    extend_from(*selector, before_.get(), rows);
    return selector;
  }

  // Second moment of the unit rows that selection compares.
  Moments moment_of(const TokenRows& tokens) const {
    const int64_t d = model_.spec().d_model;
    const auto view = [&](const std::vector<float>& values) {
      return ConstTensor(values.data(), DType::kF32, {static_cast<int64_t>(values.size()) / d, d});
    };
    const std::vector<float> rows = host_rows(model_.backend(), tokens.rows);
    const std::vector<float> residual = host_rows(model_.backend(), tokens.residual);
    ExemptTokens exempt(options_.sinks, options_.outlier_ratio);
    std::vector<bool> skip;
    for (int64_t t = 0; t < tokens.rows.rows(); ++t) {
      const double inverse = exempt.needs_norms() ? inverse_norm(view(residual), t) : 0;
      skip.push_back(exempt.next(inverse > 0 ? 1 / inverse : 0));
    }
    Moments moments(d);
    moments.add_unit(view(rows), skip);
    check_finite(moments.total());
    return moments;
  }

  void add_layer(const AttentionSeen& seen) {
    const TokenRows rows{options_.space == RowSpace::kNormed ? seen.input : seen.residual,
                         seen.residual};
    auto plain = select(rows, nullptr);
    Moments moments = moment_of(rows);
    if (moments.total() > 0) {  // else all tokens are exempt, and no pair is looked at
      const std::vector<double> a = moments.take();
      for (PassTrack& track : tracks_) add_layer(track, {a, rows, *plain, seen.layer});
    }
    before_ = std::move(plain);
  }

  struct Layer {
    const std::vector<double>& moment;
    const TokenRows& rows;
    const Selector& plain;
    int64_t layer;
  };
  void add_layer(PassTrack& track, const Layer& at) const {
    const int64_t d = model_.spec().d_model, rank = track.profile.rank;
    const bool has_before = !track.basis.empty();
    RunningBasis basis = run_basis({.a = at.moment,
                                    .d = d,
                                    .k = rank,
                                    .before = track.basis,
                                    .threshold = track.profile.threshold});
    const auto joint = select(
        at.rows, std::make_shared<SelectionBasis>(
                     rank, d, std::vector<float>(basis.vectors.begin(), basis.vectors.end())));
    SLUICE_CHECK(joint->sets()[0].status == at.plain.sets()[0].status &&
                 joint->sets()[0].owner == at.plain.sets()[0].owner);
    const int64_t pairs = joint->products() + joint->pairs_dropped();
    OnePassLayer& to = track.profile.layers[static_cast<size_t>(at.layer)];
    to.updates.add(static_cast<double>(basis.updates));
    if (has_before) to.residual.add(basis.residual);
    to.energy.add(basis.energy);
    to.dropped_fraction.add(
        pairs > 0 ? static_cast<double>(joint->pairs_dropped()) / static_cast<double>(pairs) : 0);
    if (has_before) track.updates += basis.updates;
    const OnePassWork work = one_pass_work({.n_tokens = at.rows.rows.rows(),
                                            .d = d,
                                            .rank = rank,
                                            .has_before = has_before,
                                            .updated = basis.updates > 0,
                                            .plain_products = at.plain.products(),
                                            .pairs = pairs,
                                            .products = joint->products()});
    track.work.set_alone += work.set_alone;
    track.work.apart += work.apart;
    track.work.together += work.together;
    track.basis = std::move(basis.vectors);
  }

  Model& model_;
  const JointOptions& options_;
  KvCache cache_;
  std::vector<PassTrack> tracks_;
  std::unique_ptr<Selector> before_;  // of the layer before, without a basis; first: none
};

}  // namespace

OnePassWork one_pass_work(const OnePassCounts& counts) {
  const auto t = static_cast<double>(counts.n_tokens), d = static_cast<double>(counts.d);
  const auto k = static_cast<double>(counts.rank);
  const double coordinates = t * k * d;
  const double update = counts.updated ? t * d * d / 2 + eigen_work(counts.d, counts.rank) : 0;
  OnePassWork out;
  out.set_alone = static_cast<double>(counts.plain_products) * d;
  const double basis = (counts.has_before ? coordinates : 0) + update;
  out.apart = out.set_alone + basis;
  out.together = basis + (counts.updated ? coordinates : 0) +
                 static_cast<double>(counts.pairs) * k + static_cast<double>(counts.products) * d;
  return out;
}

int64_t OnePassProfile::fresh_updates() const {
  return rank * (static_cast<int64_t>(layers.size()) - 1);
}

std::vector<OnePassProfile> profile_one_pass(Model& model, TextStream& text,
                                             const JointOptions& options,
                                             const std::vector<double>& thresholds) {
  OnePass pass(model, options, thresholds);
  WholeWindows windows(text, {options.n_tokens, options.n_windows, model.spec().n_layers}, {});
  while (windows.next()) pass.add_window(windows.tokens());
  return pass.take();
}

nlohmann::json describe_one_pass(const std::vector<OnePassProfile>& profiles) {
  nlohmann::json out = nlohmann::json::array();
  for (const OnePassProfile& profile : profiles) {
    nlohmann::json layers = nlohmann::json::array();
    for (size_t l = 0; l < profile.layers.size(); ++l) {
      const OnePassLayer& layer = profile.layers[l];
      layers.push_back(
          {{"layer", l},
           {"updates", layer.updates.mean()},
           {"residual", l == 0 ? nlohmann::json() : nlohmann::json(layer.residual.mean())},
           {"energy", layer.energy.mean()},
           {"dropped_fraction", layer.dropped_fraction.mean()}});
    }
    out.push_back({{"rank", profile.rank},
                   {"threshold", profile.threshold},
                   {"updates", profile.updates.mean()},
                   {"fresh_updates", profile.fresh_updates()},
                   {"work_set_alone", profile.set_alone.mean()},
                   {"work_apart", profile.apart.mean()},
                   {"work_together", profile.together.mean()},
                   {"layers", std::move(layers)}});
  }
  return out;
}

}  // namespace sluice::impl
