// A running basis: the basis of the layer before, updated only where the residual asks for it. This
// is GSI's "basis updates" read literally. docs/algorithm.md, section 4, "Running bases".
//
// Let V be the basis of the layer before, and the residual 1 - tr(V A Vᵀ) / tr(A), the share of a
// layer's energy that V leaves out. Where it is at most `threshold`, V is inherited as it is. Else
// the fewest directions that are needed join: the leading eigenvectors of A outside of V. Of V and
// these, Rayleigh-Ritz keeps the best k. Where fewer than k do not do, the basis is made afresh.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::impl {

struct RunningBasis {
  std::vector<double> vectors;  // (k, d) orthonormal rows
  int64_t updates = 0;          // directions that joined: 0 inherited as it is, k afresh
  double residual = 0;          // share of the energy that the basis before leaves out
  double energy = 0;            // share of the energy that this one captures
};

// a: symmetric (d, d) by its upper triangle, not all zeros. before: (k, d) orthonormal rows; empty
// for none, which makes a basis of rank k afresh. threshold: 0 makes every basis afresh (where V
// does not hold all of the energy to the last bit), 1 none.
struct RunningArgs {
  const std::vector<double>& a;
  int64_t d, k;
  std::span<const double> before;
  double threshold;
};
RunningBasis run_basis(const RunningArgs& args);

// Multiply-adds: the product A V shows the residual, k d². An update adds the leading directions of
// what is outside and Rayleigh-Ritz, at most a fresh decomposition, and is counted as one.
double running_work(int64_t d, int64_t k, bool updated);

}  // namespace sluice::impl
