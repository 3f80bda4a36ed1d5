// x W^T for many rows of x by tiles of blocks (gemm/blocks/tiles.h). From the inside out: a
// register tile; some groups of the matrix, unpacked into the first cache, which all rows of a
// block of x pass; a block of rows, rounded once; columns of f32 sums until the epilogue.

#pragma once

#include "backend/cpu/gemm/blocks/tiles.h"
#include "backend/cpu/gemm/linear.h"

namespace sluice::impl::cpu::gemm {

struct TiledProductArgs {
  const LinearArgs* linear;
  const BlockTileKernel* kernel;
  DType type;
  const std::byte* groups;  // of the whole matrix, packed
  int64_t group_bytes;
  int64_t n_out, n_in;
  const float* bias;  // or null
};
void multiply_by_tiles(const TiledProductArgs& args);

}  // namespace sluice::impl::cpu::gemm
