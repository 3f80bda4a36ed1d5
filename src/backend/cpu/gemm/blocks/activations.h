// Activations rounded to 8 bits for products with blocks: x = scale q, |q| <= 127, one scale to a
// block of 32 or 256. scale is the block's largest magnitude over 127, so that a value errs by half
// a scale at most (docs/architecture.md, Numbers).

#pragma once

#include <utility>
#include <vector>

#include "backend/cpu/gemm/blocks/kernel.h"
#include "backend/cpu/gemm/blocks/layout.h"
#include "core/tensor.h"

namespace sluice::impl::cpu::gemm {

// Below this a block counts as zeros: 127 / x would overflow.
constexpr float kSmallestActivation = 0x1p-100f;

// Rounds n values, a multiple of 32, and returns their scale. Where one is not finite the scale is
// NaN, and so are the products.
float quantise_activations(const float* x, int64_t n, int8_t* q);
// Rounds n_blocks blocks of 32, with a scale to each. Returns the sum of all squares. `sums`,
// unless null, are those of every 16 rounded values.
float quantise_row(const float* x, int64_t n_blocks, int8_t* q, float* scales, int32_t* sums);

// A block with a value above this many times its row's root mean square is rounded in two terms:
// its other values share a scale with the outlier, and weights are often small where activations
// are large.
constexpr float kOutlier = 8.0f;

// What the rounding of a block left, rounded likewise: a row of one block.
struct BlockTerm {
  int64_t row, block;
  QuantisedRow x;
};

class QuantisedRows {
 public:
  // All rows of x, (n_rows, n_in) f32 or bf16, for weights of `type`.
  void set(const ConstTensor& x, DType type, const BlockKernel& kernel);
  int64_t size() const { return n_rows_; }
  QuantisedRow row(int64_t index) const;
  // Second terms of blocks with outliers, ordered by row.
  int64_t n_terms() const { return std::ssize(terms_); }
  BlockTerm term(int64_t index) const;

 private:
  // Blocks as a kernel wants them. Two of a pair of rows have one place for values and starts.
  struct Storage {
    std::vector<int8_t> values;           // (places, values of a block, 1 or 2)
    std::vector<int32_t> starts;          // (places, scales of the weights, 4)
    std::vector<float> scales, products;  // (blocks), (blocks, scales of the weights)
    std::vector<int32_t> sums;            // like products
  };
  struct Slot {
    int64_t place, block;
    int64_t half;  // of the place, 0 or 1
    bool alone;    // the other half is its own
  };

  void resize(Storage& storage, int64_t n_blocks) const;
  QuantisedRow at(const Storage& storage, int64_t place, int64_t block) const;
  // Rounds a row of n_in values.
  void set_row(int64_t row, const float* x);
  // Rounds a block to a slot: q are its values, which are returned with their scale.
  float set_block(const float* x, const Slot& slot, Storage& storage, int8_t* q) const;

  BlockLayout layout_{};
  XOrder order_ = XOrder::kPlain;
  int32_t first_ = 0;
  int64_t n_rows_ = 0, n_blocks_ = 0;  // blocks of a row
  Storage rows_, of_terms_;
  std::vector<std::pair<int64_t, int64_t>> terms_;  // row, block
};

// Kernels that run here, slowest first.
std::vector<const BlockKernel*> block_kernels();
// The fastest.
const BlockKernel& block_kernel();

}  // namespace sluice::impl::cpu::gemm
