// Directions that the rows of a layer lie near, in which most pairs can be decided:
// docs/algorithm.md, section 5.

#pragma once

#include <span>
#include <vector>

#include "core/dtype.h"

namespace sluice::impl {

// Sets do not depend on the basis: one that fits badly, or is not quite orthonormal, only leaves
// more pairs to be decided at full width.
class SelectionBasis {
 public:
  // vectors: (rank, d_model), its rows orthonormal. Throws Error where they are far from that.
  SelectionBasis(int64_t rank, int64_t d_model, std::vector<float> vectors);

  int64_t rank() const { return rank_; }
  int64_t d_model() const { return d_model_; }
  std::span<const float> vectors() const { return vectors_; }
  // At least the spectral norm of V Vᵀ - 1, where V are the vectors as dtype holds them.
  double deviation(DType dtype) const {
    return dtype == DType::kBF16 ? deviation_bf16_ : deviation_;
  }

 private:
  int64_t rank_, d_model_;
  std::vector<float> vectors_;
  double deviation_ = 0, deviation_bf16_ = 0;
};

}  // namespace sluice::impl
