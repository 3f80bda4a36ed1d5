// What the attention kernels on the tensor cores share: tiles of keys and values in shared memory,
// and one step of a warp's softmax over 16 queries.

#pragma once

#include <cuda_bf16.h>

#include "backend/cuda/attention/dense/dense.h"
#include "backend/cuda/primitives/element.cuh"
#include "backend/cuda/primitives/mma.cuh"

namespace sluice::impl::cuda::dense {

constexpr float kLog2E = 1.4426950408889634f;

// 2^x, to two units in the last place; 0 for -inf.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x, to one unit in the last place.
__device__ inline float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
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

// The softmax so far of the queries of rows g and g + 8 of the instruction's layout.
struct Softmax {
  float largest[2] = {-INFINITY, -INFINITY};  // score
  float total[2] = {0, 0};                    // of weights, this lane's keys only
};

// The largest score of row g or g + 8 with those of 8 kN keys, as products leave them.
template <int kN>
__device__ float largest_score(const Softmax& softmax, const float (&scores)[kN][4], int half) {
  float largest = softmax.largest[half];
#pragma unroll
  for (int n = 0; n < kN; ++n)
    largest = fmaxf(largest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
  return fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
}

// Scores (rows of 8 kN keys, as products leave them) become weights in place. What was summed so
// far counts `kept` of itself after. factor: scale * log2(e).
template <int kN>
__device__ void take_scores(Softmax& softmax, float (&scores)[kN][4], float factor,
                            float (&kept)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float now = largest_score(softmax, scores, half);
    // A row that has seen no key yet keeps weights of zero.
    const float shift = now == -INFINITY ? 0.0f : now * factor;
    kept[half] = exp2_fast(softmax.largest[half] * factor - shift);
    softmax.largest[half] = now;
    float total = 0;
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[n][i] = exp2_fast(fmaf(scores[n][i], factor, -shift));
        total += scores[n][i];
      }
    softmax.total[half] = softmax.total[half] * kept[half] + total;
  }
}

template <int kN>
__device__ void scale_sums(float (&sums)[kN][4], const float (&kept)[2]) {
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] *= kept[i / 2];
}

// The totals of rows g and g + 8, of all lanes' keys.
__device__ inline void add_lanes(Softmax& softmax) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
    for (int step = 1; step < 4; step *= 2)
      softmax.total[half] += __shfl_xor_sync(0xffffffffu, softmax.total[half], step);
}

// Weights of 16 keys as the left operand of a product.
__device__ inline void as_operand(uint32_t (&a)[4], const float (&low)[4], const float (&high)[4]) {
  a[0] = narrowed(low[0], low[1]);
  a[1] = narrowed(low[2], low[3]);
  a[2] = narrowed(high[0], high[1]);
  a[3] = narrowed(high[2], high[3]);
}

// A warp's 16 rows of a tile of queries, columns [column, column + 16), as the left operand.
template <int kD>
__device__ void load_query(uint32_t (&to)[4], const __nv_bfloat16* queries, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row = warp * 16 + lane / 8 % 2 * 8 + lane % 8;
  load_matrices(to, queries + row * kTileStride<kD> + column + lane / 16 * 8);
}

// scores += queries (16 x 16 columns, as the left operand) times keys [key, key + 8 kN), columns
// [column, column + 16).
template <int kD, int kN>
__device__ void add_scores(float (&scores)[kN][4], const uint32_t (&query)[4],
                           const __nv_bfloat16* keys, int key, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 16 * 8 + lane % 8, column_offset = lane / 8 % 2 * 8;
#pragma unroll
  for (int n = 0; n < kN; n += 2) {
    uint32_t b[4];
    load_matrices(b, keys + (key + n * 8 + row) * kTileStride<kD> + column + column_offset);
    mma_bf16(scores[n], query, b[0], b[1]);
    mma_bf16(scores[n + 1], query, b[2], b[3]);
  }
}

// sums (8 kD columns) += weights (of 8 kN keys) times values [key, key + 8 kN).
template <int kD, int kN>
__device__ void add_values(float (&sums)[kD / 8][4], const float (&weights)[kN][4],
                           const __nv_bfloat16* values, int key) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 8 % 2 * 8 + lane % 8, column_offset = lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < kN; k += 2) {
    uint32_t a[4];
    as_operand(a, weights[k], weights[k + 1]);
#pragma unroll
    for (int n = 0; n < kD / 8; n += 2) {
      uint32_t b[4];
      load_matrices_transposed(
          b, values + (key + k * 8 + row) * kTileStride<kD> + n * 8 + column_offset);
      mma_bf16(sums[n], a, b[0], b[1]);
      mma_bf16(sums[n + 1], a, b[2], b[3]);
    }
  }
}

// The keys that the queries at two positions see, counted from `first`, both ends included.
struct Seen {
  int begin[2], end[2];
};
__device__ inline Seen seen_from(const AttendView& view, int64_t first,
                                 const int64_t (&positions)[2], int64_t n_keys) {
  constexpr int64_t kFar = 1 << 20;  // more than a tile
  Seen seen;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t last = view.causal && positions[half] < n_keys ? positions[half] : n_keys - 1;
    const int64_t begin = view.window > 0 ? positions[half] + 1 - view.window : 0;
    seen.end[half] = static_cast<int>(max(min(last - first, kFar), -kFar));
    seen.begin[half] = static_cast<int>(max(min(begin - first, kFar), -kFar));
  }
  return seen;
}

// Scores before they are scaled -> capped ones.
template <int kN>
__device__ void cap_scores(float (&scores)[kN][4], float cap) {
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = cap * tanhf(scores[n][i] / cap);
}

// Sets scores of keys that a query does not see to -inf.
template <int kN>
__device__ void mask_scores(float (&scores)[kN][4], const Seen& seen) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = n * 8 + 2 * t + i % 2;
      if (key < seen.begin[i / 2] || key > seen.end[i / 2]) scores[n][i] = -INFINITY;
    }
}

// Writes columns [column, column + 8 kN) of one head for tokens `query` and query + 8 of a sequence
// that begins at first_row.
struct OutRows {
  int64_t first_row, query, head;
};
template <int kN>
__device__ void store_sums(const AttendView& view, const OutRows& rows, int column,
                           const float (&sums)[kN][4], const float (&totals)[2]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  auto* out = reinterpret_cast<__nv_bfloat16*>(view.out);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t query = rows.query + 8 * half;
    if (query >= view.n_tokens) continue;
    const float inverse = 1 / totals[half];
    __nv_bfloat16* row =
        out + (rows.first_row + query) * view.out_stride + rows.head * view.head_dim;
#pragma unroll
    for (int n = 0; n < kN; ++n)
      if (column + n * 8 < view.head_dim)
        *reinterpret_cast<uint32_t*>(row + column + n * 8 + 2 * t) =
            narrowed(sums[n][2 * half] * inverse, sums[n][2 * half + 1] * inverse);
  }
}

}  // namespace sluice::impl::cuda::dense
