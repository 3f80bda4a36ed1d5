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

class QuantisedRows {
 public:
  // All rows of x, (n_rows, n_in) f32 or bf16, for weights of `type`. `pairs`: BlockKernel::pairs;
  // the last row of an odd number is its own partner.
  void set(const ConstTensor& x, DType type, bool pairs);
  QuantisedRow row(int64_t index) const;

 private:
  void set_row(int64_t row, const float* x);

  DType type_ = DType::kQ8_0;
  bool pairs_ = false;
  int64_t n_rows_ = 0, n_in_ = 0, n_blocks_ = 0, n_sums_ = 0;
  std::vector<float> wide_;
  std::vector<int8_t> row_, values_;
  std::vector<float> scales_, products_;
  std::vector<int32_t> sums_;
};

// Kernels that run here, slowest first.
std::vector<const BlockKernel*> block_kernels();
// The fastest.
const BlockKernel& block_kernel();

}  // namespace sluice::impl::cpu::gemm
