// Activations rounded to 8 bits for products with blocks: x = scale q, |q| <= 127, one scale to a
// block of 32 or 256. scale is the block's largest magnitude over 127, so that a value errs by half
// a scale at most (docs/architecture.md, Numbers).

#pragma once

#include <vector>

#include "backend/cpu/gemm/blocks/kernel.h"
#include "core/tensor.h"

namespace sluice::impl::cpu::gemm {

// Below this a block counts as zeros: 127 / x would overflow.
constexpr float kSmallestActivation = 0x1p-100f;

// Rounds n values, a multiple of 32, and returns their scale. Where one is not finite the scale is
// NaN, and so are the products.
float quantise_activations(const float* x, int64_t n, int8_t* q);
// Rounds n_blocks blocks of 32, with a scale to each. Returns the sum of all squares.
float quantise_row(const float* x, int64_t n_blocks, int8_t* q, float* scales);

// A row with a value above this many times its root mean square is rounded in two terms: its other
// values share a block's scale with the outlier, and weights are often small where activations are
// large.
constexpr float kOutlier = 8.0f;

class QuantisedRows {
 public:
  // All rows of x, (n_rows, n_in) f32 or bf16, for weights of `type`; then, for each row with an
  // outlier, what its rounding left, rounded likewise. `pairs`: BlockKernel::pairs; the last row of
  // an odd number is its own partner.
  void set(const ConstTensor& x, DType type, bool pairs);
  int64_t size() const { return n_rows_; }
  QuantisedRow row(int64_t index) const;
  // The row of x that row `index` is a term of.
  int64_t row_of(int64_t index) const { return row_of_[static_cast<size_t>(index)]; }

 private:
  void resize();
  void set_row(int64_t row, const float* x);
  // x less what the row holds of it.
  void subtract(int64_t row, float* x) const;

  DType type_ = DType::kQ8_0;
  bool pairs_ = false;
  int64_t n_rows_ = 0, n_in_ = 0, n_blocks_ = 0, n_sums_ = 0;
  std::vector<int64_t> row_of_;
  std::vector<float> wide_;  // (rows of x, n_in)
  std::vector<int8_t> plain_, values_;
  std::vector<float> scales_, products_;
  std::vector<int32_t> sums_;
};

// Kernels that run here, slowest first.
std::vector<const BlockKernel*> block_kernels();
// The fastest.
const BlockKernel& block_kernel();

}  // namespace sluice::impl::cpu::gemm
