// One row of x times a matrix, at the speed of the memory that holds the matrix. A warp takes a few
// rows of weights at a time and reads the next piece of them while it multiplies one.

#pragma once

#include "backend/cuda/primitives/element.cuh"

namespace sluice::impl::cuda::linear {

constexpr int kRowWarps = 8;        // of a block
constexpr int kPieceLoads = 8;      // of 16 bytes, a lane's part of a piece
constexpr int64_t kChunk = 32 * 8;  // elements of a row that a warp reads at once
constexpr int kRowBlocks = 2;       // of one multiprocessor
constexpr int kDenseRows = 2;       // of a whole matrix, to a warp at a time

// bf16, depth a multiple of 8 and everything aligned to 16 bytes.
struct RowWeights {
  const std::byte* data;
  int64_t stride, n_out, depth;
};

// What is done with a sum: out = activation(sum + bias), or out += sum + bias.
struct RowOutput {
  const float* bias;  // or null
  Activation activation;
  bool accumulate;
  RowsView out;  // one row
};

// The weights are read once, so they do not belong in the first-level cache.
__device__ inline uint4 read_once(const std::byte* from) {
  uint4 bits;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(from));
  return bits;
}

// A piece is kRows rows by as many chunks of their depth as make kPieceLoads loads.
template <int kRows>
constexpr int64_t kPieceDepth = kPieceLoads / kRows* kChunk;

template <int kRows>
__device__ void read_piece(const RowWeights& weights, int64_t row, int64_t depth,
                           uint4 (&piece)[kPieceLoads]) {
  constexpr int kChunks = kPieceLoads / kRows;
  const int64_t lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int64_t k = depth + c * kChunk + 8 * lane;
      piece[r * kChunks + c] = row + r < weights.n_out && k < weights.depth
                                   ? read_once(weights.data + 2 * ((row + r) * weights.stride + k))
                                   : make_uint4(0, 0, 0, 0);
    }
}

// Asks for a piece that is read later, so that it lies in the second-level cache by then: a line of
// 128 bytes to a lane.
template <int kRows>
__device__ void ask_for_piece(const RowWeights& weights, int64_t row, int64_t depth) {
  constexpr int64_t kLine = 64, kLines = kPieceDepth<kRows> / kLine;  // elements; lines of a row
  static_assert(kRows * kLines == 32);
  const int64_t lane = threadIdx.x % 32, r = row + lane / kLines;
  const int64_t k = depth + lane % kLines * kLine;
  if (r < weights.n_out && k < weights.depth)
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(weights.data + 2 * (r * weights.stride + k)));
}

template <int kRows>
__device__ void multiply_piece(const uint4 (&piece)[kPieceLoads], const std::byte* x, int64_t depth,
                               int64_t end, float (&sums)[kRows]) {
  constexpr int kChunks = kPieceLoads / kRows;
  const int64_t lane = threadIdx.x % 32;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int64_t k = depth + c * kChunk + 8 * lane;
    float own[8], w[8];
    widen_eight(k < end ? *reinterpret_cast<const uint4*>(x + 2 * k) : make_uint4(0, 0, 0, 0), own);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      widen_eight(piece[r * kChunks + c], w);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[r] += own[i] * w[i];
    }
  }
}

template <int kRows>
__device__ void finish_sums(float (&sums)[kRows], const RowOutput& output, int64_t row,
                            int64_t n_out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float mine = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    for (int step = 16; step > 0; step /= 2) sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], step);
    if (lane == r) mine = sums[r];
    sums[r] = 0;
  }
  row += lane;
  if (lane >= kRows || row >= n_out) return;
  if (output.bias != nullptr) mine += output.bias[row];
  float value[1] = {0};
  if (output.accumulate) load<1>(output.out, 0, row, value);
  value[0] = output.accumulate ? value[0] + mine : activate(output.activation, mine);
  store<1>(output.out, 0, row, value);
}

// Rows kRows * warp, kRows * (warp + n_warps) … of the product. piece: the first of this warp,
// read_piece<kRows>(weights, kRows * warp, 0, piece).
template <int kRows>
__device__ void multiply_rows(const RowWeights& weights, const std::byte* x,
                              const RowOutput& output, int64_t warp, int64_t n_warps,
                              uint4 (&piece)[kPieceLoads]) {
  float sums[kRows] = {};
  int64_t row = kRows * warp, depth = 0;
  while (row < weights.n_out) {
    int64_t next_row = row, next_depth = depth + kPieceDepth<kRows>;
    if (next_depth >= weights.depth) {
      next_depth = 0;
      next_row += kRows * n_warps;
    }
    uint4 next[kPieceLoads];
    read_piece<kRows>(weights, next_row, next_depth, next);
    multiply_piece<kRows>(piece, x, depth, weights.depth, sums);
    if (next_depth == 0) finish_sums<kRows>(sums, output, row, weights.n_out);
#pragma unroll
    for (int i = 0; i < kPieceLoads; ++i) piece[i] = next[i];
    row = next_row;
    depth = next_depth;
  }
}

}  // namespace sluice::impl::cuda::linear
