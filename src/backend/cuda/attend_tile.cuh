// What the attention kernels on the matrix units share: tiles of keys and values in shared memory,
// and one step of a warp's softmax over 16 queries.

#pragma once

#include <cuda_bf16.h>

#include "backend/cuda/attend_dense.h"
#include "backend/cuda/element.cuh"
#include "backend/cuda/mma.cuh"

namespace sluice::cuda {

constexpr float kLog2E = 1.4426950408889634f;

// 2^x, to two units in the last place; 0 for -inf.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// Rows of kD numbers and 16 bytes: eight rows of one column then lie in different banks.
template <int kD>
constexpr int kTileStride = kD + 8;

// Starts copying rows [first, first + kRows) of (…, head_dim) to a tile; zeros from `end` on and
// behind head_dim.
template <int kD, int kRows, int kThreads>
__device__ void copy_tile(__nv_bfloat16* tile, const __nv_bfloat16* rows, int64_t stride,
                          int64_t first, int64_t end, int head_dim) {
  constexpr int kChunks = kD / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, column = i % kChunks * 8;
    const bool exists = first + row < end && column < head_dim;
    copy_async(tile + row * kTileStride<kD> + column,
               exists ? rows + (first + row) * stride + column : rows, exists);
  }
}

// The queries of a warp, kept by rows g and g + 8 of the instruction's layout.
template <int kD>
struct QueryState {
  float sums[kD / 8][4] = {};                 // of values, weighted
  float largest[2] = {-INFINITY, -INFINITY};  // score so far
  float total[2] = {0, 0};                    // of weights, this lane's keys only
};

// Scores (16 x 8 kN, as products leave them) become weights in place, and what is summed so far is
// scaled to the new maximum. factor: scale * log2(e).
template <int kD, int kN>
__device__ void take_scores(QueryState<kD>& state, float (&scores)[kN][4], float factor) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float now = state.largest[half];
#pragma unroll
    for (int n = 0; n < kN; ++n)
      now = fmaxf(now, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
    now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
    // A row that has seen no key yet keeps weights of zero.
    const float shift = now == -INFINITY ? 0.0f : now * factor;
    const float kept = exp2_fast(state.largest[half] * factor - shift);
    state.largest[half] = now;
    float total = 0;
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[n][i] = exp2_fast(fmaf(scores[n][i], factor, -shift));
        total += scores[n][i];
      }
    state.total[half] = state.total[half] * kept + total;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      state.sums[n][2 * half] *= kept;
      state.sums[n][2 * half + 1] *= kept;
    }
  }
}

// scores += queries (16 x 16 columns, as the left operand) times keys [key, key + 8 kN), columns
// [column, column + 16).
template <int kD, int kN>
__device__ void add_scores(float (&scores)[kN][4], const uint32_t (&query)[4],
                           const __nv_bfloat16* keys, int key, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 16 * 8 + lane % 8, beside = lane / 8 % 2 * 8;
#pragma unroll
  for (int n = 0; n < kN; n += 2) {
    uint32_t b[4];
    load_matrices(b, keys + (key + n * 8 + row) * kTileStride<kD> + column + beside);
    mma_bf16(scores[n], query, b[0], b[1]);
    mma_bf16(scores[n + 1], query, b[2], b[3]);
  }
}

// sums += weights (of 8 kN keys) times values [key, key + 8 kN).
template <int kD, int kN>
__device__ void add_values(QueryState<kD>& state, const float (&weights)[kN][4],
                           const __nv_bfloat16* values, int key) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 8 % 2 * 8 + lane % 8, beside = lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < kN; k += 2) {
    const uint32_t a[4] = {narrowed(weights[k][0], weights[k][1]),
                           narrowed(weights[k][2], weights[k][3]),
                           narrowed(weights[k + 1][0], weights[k + 1][1]),
                           narrowed(weights[k + 1][2], weights[k + 1][3])};
#pragma unroll
    for (int n = 0; n < kD / 8; n += 2) {
      uint32_t b[4];
      load_matrices_transposed(b, values + (key + k * 8 + row) * kTileStride<kD> + n * 8 + beside);
      mma_bf16(state.sums[n], a, b[0], b[1]);
      mma_bf16(state.sums[n + 1], a, b[2], b[3]);
    }
  }
}

// Sets scores of keys that a query does not see to -inf. first_key: of scores[0]; positions: of the
// queries of rows g and g + 8; n_keys: how many there are.
template <int kN>
__device__ void mask_scores(float (&scores)[kN][4], int64_t first_key,
                            const int64_t (&positions)[2], const AttendView& view, int64_t n_keys) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t key = first_key + n * 8 + 2 * t + i % 2, position = positions[i / 2];
      const bool seen = key < n_keys && (!view.causal || key <= position) &&
                        (view.window == 0 || key > position - view.window);
      if (!seen) scores[n][i] = -INFINITY;
    }
}

}  // namespace sluice::cuda
