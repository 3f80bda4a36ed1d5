// 32 weights of the eight rows of a group (gemm/blocks/layout.h) as floats.

#pragma once

#include <cstdint>

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

}  // namespace sluice::impl::cpu::gemm
