// What the kernels of few_rows.cuh take. They are compiled in two files, since there are many.

#pragma once

#include "backend/cuda/primitives/element.cuh"
#include "backend/cuda/runtime/device.h"

namespace sluice::impl::cuda::linear {

struct BlockProduct {
  const std::byte* chunks;
  int64_t n_tiles, tile_bytes, n_out;
  int n_pieces, depth;  // n_pieces: of a tile
  const std::byte* x;   // bf16
  int64_t x_stride;
  int n_rows;
  const float* bias;
  Activation activation;
  bool accumulate;
  RowsView out;
};

void multiply_small_blocks(Context& context, DType dtype, const BlockProduct& product);
void multiply_large_blocks(Context& context, DType dtype, const BlockProduct& product);

}  // namespace sluice::impl::cuda::linear
