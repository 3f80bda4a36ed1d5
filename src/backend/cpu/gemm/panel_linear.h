// x W^T for many rows over panels of W (gemm/gemm.h). Blocking, from the inside out: a register
// tile of mr x nr; a piece of k, about a kernel's depth, so that a slice of a panel stays in the
// first cache while a few tiles of rows pass over it; a block of rows, converted once; slices of
// several panels, which stay in the second cache while all rows of the block pass, as do their f32
// sums until the epilogue.

#pragma once

#include <vector>

#include "backend/cpu/gemm/gemm.h"
#include "backend/cpu/gemm/linear.h"

namespace sluice::impl::cpu::gemm {

struct Range {
  int64_t begin, end;
};

// Slices of neighbouring panels at one depth.
struct PanelSlices {
  const std::byte* first;
  int64_t stride;  // bytes from one panel to the next
};

class PanelLinear : public Linear {
 protected:
  PanelLinear(const MatrixSource& source, int64_t bytes, const Kernel& kernel,
              std::vector<float> bias)
      : Linear(source.n_out, source.n_in, bytes), kernel_(kernel), bias_(std::move(bias)) {}

  const Kernel& kernel() const { return kernel_; }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }

  // The panels from `k` on, `depth` of it, valid until this thread asks again.
  virtual PanelSlices slices(Range panels, int64_t k, int64_t depth) const = 0;

  struct Split {
    int64_t row_block;  // rows that share what slices() gives
    int64_t row_parts;  // rows are divided over threads so many times, columns for the rest
  };
  void multiply(const LinearArgs& args, const Split& split) const;

  // Columns [k, k + n) of a row of x in the kernel's type, and zeros up to `end`.
  struct Columns {
    int64_t k, n, end;
  };
  void convert_row(const ConstTensor& x, int64_t row, const Columns& columns, std::byte* to) const;

 private:
  void multiply_part(const LinearArgs& args, int64_t row_block, Range rows, Range panels) const;

  const Kernel& kernel_;
  std::vector<float> bias_;
};

}  // namespace sluice::impl::cpu::gemm
