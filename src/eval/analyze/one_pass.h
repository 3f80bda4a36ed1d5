// The joint cascade of the paper's section 8.3 in one pass over the layers: a layer inherits the
// basis and the set of the layer before, and one product, the coordinates of its unit rows in that
// basis, validates both. The norms of the coordinates show what the basis leaves out, and where
// that is above a threshold the basis is updated from the rows at hand (subspace/running.h). The
// same coordinates decide pairs of the set (docs/algorithm.md, section 5), so sets do not depend on
// it. Nothing is calibrated: the first layer's basis is of its own rows.

#pragma once

#include "eval/analyze/joint_profile.h"

namespace sluice::impl {

// Multiply-adds of one layer, or of several.
struct OnePassWork {
  double set_alone = 0;  // selection without a basis
  double apart = 0;      // the same, and a basis inherited for itself
  double together = 0;   // one pass
};

// One layer in one window.
struct OnePassCounts {
  int64_t n_tokens = 0, d = 0, rank = 0;
  bool has_before = false;  // a basis to inherit
  bool updated = false;
  int64_t plain_products = 0;       // pairs that selection without a basis multiplies
  int64_t pairs = 0, products = 0;  // considered with a basis; of these at full width
};
// A layer's coordinates are T k d, once more after an update; an update is the second moment of the
// rows, T d² / 2, and a decomposition. Pairs are k wide where a basis is there, and d wide besides
// where it leaves them open.
OnePassWork one_pass_work(const OnePassCounts& counts);

struct OnePassLayer {
  RunningMean updates;           // directions; rank: afresh
  RunningMean residual, energy;  // left out by the basis before; captured by this one
  RunningMean dropped_fraction;  // of the pairs considered
};

struct OnePassProfile {
  int64_t rank = 0;
  double threshold = 0;
  std::vector<OnePassLayer> layers;
  RunningMean updates;                     // directions of all layers behind the first
  RunningMean set_alone, apart, together;  // multiply-adds of all layers

  int64_t fresh_updates() const;  // directions of fresh bases behind the first layer
};

// Per rank of the options, then per threshold; windows and errors as profile_joint.
std::vector<OnePassProfile> profile_one_pass(Model& model, TextStream& text,
                                             const JointOptions& options,
                                             const std::vector<double>& thresholds);

// The `one_pass` of a results.json's `joint`.
nlohmann::json describe_one_pass(const std::vector<OnePassProfile>& profiles);

}  // namespace sluice::impl
