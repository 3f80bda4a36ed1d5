// The kernels that read chunks (chunk.h).

#pragma once

#include "backend/cuda/linear/kernels.h"

namespace sluice::impl::cuda::linear {

// A matrix in chunks: (tiles of 16 rows, chunks of a tile).
struct ChunksView {
  DType dtype;
  const std::byte* chunks;
  int64_t n_rows, n_in, n_chunks;  // n_chunks: of a tile
};

// The whole product for at most kFewBlockRows rows of bf16; rows of x aligned to 16 bytes.
// Quants are multiplied as they are, exactly, and their sums are scaled step by step in f32.
constexpr int64_t kFewBlockRows = 16;
struct FewBlockRowsArgs {
  ChunksView weights;
  ConstTensor x;  // (n_rows, n_in)
  const float* bias;
  Activation activation;
  bool accumulate;
  Tensor out;  // (n_rows, weights.n_rows)
};
void multiply_few_rows(Context& context, const FewBlockRowsArgs& args);

// Rows [first, first + out.rows()) as numbers; first is a multiple of 16. out: (n, n_in), f32 or
// bf16, rows aligned to 16 bytes.
void expand_rows(Context& context, const ChunksView& weights, int64_t first, const Tensor& out);

}  // namespace sluice::impl::cuda::linear
