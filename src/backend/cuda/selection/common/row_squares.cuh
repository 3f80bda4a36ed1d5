// A row's sum of squares, part of the definition of a pair (docs/algorithm.md, section 1): in index
// order, by a warp.

#pragma once

#include "backend/cuda/primitives/mma.cuh"
#include "backend/cuda/primitives/ordered_sum.cuh"
#include "backend/cuda/selection/common/exact.cuh"

namespace sluice::impl::cuda::selection {

constexpr int kMostNormPieces = 32;  // of 16 bytes, of a lane, together

// Pieces of a lane when a warp takes a row, as many together as there is room for; and how far runs
// of that many are apart, so that lanes read from different banks.
__host__ __device__ inline int norm_pieces(int64_t row_bytes) {
  const int64_t pieces = (row_bytes + 32 * 16 - 1) / (32 * 16);
  return static_cast<int>(pieces < kMostNormPieces ? pieces : kMostNormPieces);
}
__host__ __device__ inline int norm_pitch(int pieces) { return pieces | 1; }

// A row's sum of squares. `memory`: the warp's own.
template <bool kBF16>
__device__ inline double sum_of_squares(const std::byte* row, int64_t row_bytes, uint4* memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int pieces = norm_pieces(row_bytes), pitch = norm_pitch(pieces);
  const uint4* mine = memory + lane * pitch;
  double sum = 0;
  for (int64_t first = 0; first < row_bytes; first += int64_t{32} * 16 * pieces) {
    // Lanes load neighbouring pieces (coalesced) and store each in its run.
    int run = lane / pieces, at = lane % pieces;
    const int more_runs = 32 / pieces, more = 32 % pieces;
    __syncwarp();  // the last ones are added
    for (int i = 0; i < pieces; ++i) {
      const int64_t byte = first + int64_t{16} * (i * 32 + lane);
      copy_async(memory + run * pitch + at, byte < row_bytes ? row + byte : row, byte < row_bytes);
      run += more_runs;
      at += more;
      if (at >= pieces) {
        at -= pieces;
        ++run;
      }
    }
    commit_copies();
    wait_copies<0>();
    __syncwarp();
    const int64_t left = (row_bytes - first + 15) / 16;
    const int n_lanes = static_cast<int>(min(int64_t{32}, (left + pieces - 1) / pieces));
    if constexpr (kBF16)
      sum = add_squares_in_order<8>(sum, pieces, n_lanes,
                                    [&](int i, float(&x)[8]) { widen_eight(mine[i], x); });
    else
      sum = add_squares_in_order<4>(sum, pieces, n_lanes,
                                    [&](int i, float(&x)[4]) { widen_four(mine[i], x); });
  }
  return sum;
}

__device__ inline double sum_of_squares(const ConstRowsView& rows, int64_t row, int64_t d,
                                        uint4* memory) {
  const int64_t element = rows.bf16 ? 2 : 4;
  const std::byte* from = rows.data + row * rows.stride * element;
  return rows.bf16 ? sum_of_squares<true>(from, d * element, memory)
                   : sum_of_squares<false>(from, d * element, memory);
}

// 1 / norm, 0 where it has none.
__device__ inline double inverse_norm(const ConstRowsView& rows, int64_t row, int64_t d,
                                      uint4* memory) {
  return inverse_of(sum_of_squares(rows, row, d, memory));
}

}  // namespace sluice::impl::cuda::selection
