// How alike two subspaces are: the cosines of their principal angles, which are the singular
// values of A Bᵀ for orthonormal rows A and B.

#pragma once

#include <cstdint>
#include <span>

namespace sluice::impl {

struct Coherence {
  double mean_squared;  // mean cos² of the principal angles; k/d for random subspaces
  double smallest;      // the smallest cosine
};

// a and b: orthonormal rows of d numbers, as many in both.
Coherence coherence(std::span<const float> a, std::span<const float> b, int64_t d);

}  // namespace sluice::impl
