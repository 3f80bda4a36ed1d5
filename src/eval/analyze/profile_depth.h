// Proposition 3 of the paper, measured: how far redundant pairs of one layer move apart in the
// next.
//
//   (4)  ||x_s' - x_t'|| <= L ||x_s - x_t||          x of layer l, x' of layer l + 1
//   (5)  ||x̂_s' - x̂_t'|| <= L ||x_s - x_t|| / min(||x_s'||, ||x_t'||)
//
// and a pair stays redundant where the right side of (5) is below sqrt(2) tau. L is taken as the
// largest ratio of (4) among the pairs at hand: no smaller constant will do, and a block's own is
// at least as large.

#pragma once

#include <vector>

#include "eval/analyze/profile.h"

namespace sluice::impl {

// The residual stream before a layer, on the host.
struct DepthRows {
  int64_t width = 0;
  std::vector<float> rows;  // (n_tokens, width)
};

// Pairs are the redundant tokens of `set`, which is of the rows before, and their owners. Adds one
// number to each figure, or none where there is no pair.
void measure_persistence(const DepthRows& before, const DepthRows& now, const TokenSet& set,
                         SetFigures& to);

}  // namespace sluice::impl
