// 32 weights of the eight rows of a group (gemm/blocks/layout.h) as floats, and whole blocks of a
// group as bf16.
//
// Plain data alone: files for one instruction set include this.

#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace sluice::impl::cpu::gemm {

struct ExpandTileArgs {
  const uint8_t* sub;  // the weights' bytes
  // (scales, 8), as many as the 32 weights have: one or two
  const float* scale;
  const float* minimum;
  bool halves;  // two scales
  float* out;   // (4 chunks, 8 rows, 8)
};
// out = scale (q + offset) + minimum; bits and offset of a type that there is.
void expand_tile(int bits, int offset, const ExpandTileArgs& args);

// `n_blocks` blocks of a group to rows of pairs in bf16, those of the panels whose kq is 2: from
// `to` on, eight columns of every row; rows have 2 nr numbers.
using ExpandPairsFunction = void (*)(const std::byte* blocks, int64_t n_blocks, int64_t nr,
                                     uint16_t* to);
// For panels of kernel_amx(), where there is one.
ExpandPairsFunction expand_pairs_function(DType type);

}  // namespace sluice::impl::cpu::gemm
