// Packed blocks (gemm/blocks/layout.h) -> panels of the matrix kernels (gemm/gemm.h).

#pragma once

#include "backend/cpu/gemm/gemm.h"

namespace sluice::impl::cpu::gemm {

struct ExpandArgs {
  DType type;
  const std::byte* groups;  // of the whole matrix
  int64_t group_bytes;
  int64_t n_out;
  int64_t first_column, n_columns;  // first_column is that of a panel
  int64_t k, depth;                 // multiples of the block
  const Kernel* kernel;
  std::byte* out;  // (panels, depth, nr); columns beyond n_out stay as they are
};
void expand_panels(const ExpandArgs& args);

}  // namespace sluice::impl::cpu::gemm
