// Writes the pages of a settled segment: permuted rows, means, and what the statistics are made of.

#pragma once

#include "backend/cuda/attention/refine/split_keys.cuh"

namespace sluice::cuda::refine {

struct PageSums {
  float deviation;  // squared, of the rows from their mean
  float norms;      // of the rows
};

// Both write one page, whose row i is row row_of(i) of `from`, to rows (kPage, head_dim) of the
// cache and its mean (head_dim). A warp's work.

// On tensor cores. The deviation is a difference of sums of squares, which is exact to round-off of
// the keys' own squares: as much as scores are.
template <typename RowOf>
__device__ PageSums write_page(const SharedKeys& from, __nv_bfloat16* to, __nv_bfloat16* mean,
                               int head_dim, const RowOf& row_of) {
  const int lane = lane_id(), g = lane / 4, t = lane % 4;
  const __nv_bfloat16* tile = from.tile(row_of);
  const float2 squares = tile_squares(tile, head_dim);
  const bool mine = diagonal_row() >= 0;
  float deviation = mine ? squares.x + squares.y : 0.0f;
  const float norms = mine ? sqrtf(squares.x) + sqrtf(squares.y) : 0.0f;
  for_tile_sums(tile, head_dim, {kOnes, kOnes}, [&](int k, const float(&c)[4]) {
    if (t > 1) return;  // all columns are alike
    const float x = (t == 0 ? c[0] : c[2]) * (1.0f / kPage);
    mean[k + g + 8 * t] = __float2bfloat16_rn(x);
    deviation -= kPage * x * x;
  });
  for_units(kPage, head_dim / 8, lane, 32, [&](int row, int unit) {
    reinterpret_cast<uint4*>(to + row * head_dim)[unit] = *from.unit(row_of(row), unit);
  });
  return {fmaxf(warp_sum(deviation), 0.0f), warp_sum(norms)};
}

// Of any dtype and head size, in f32.
template <typename T, typename RowOf>
__device__ PageSums write_page(const GlobalKeys<T>& from, T* to, T* mean, int head_dim,
                               const RowOf& row_of) {
  float deviation = 0, norms = 0;
  for (int i = lane_id(); i < head_dim; i += 32) {
    float sum = 0;
    for (int row = 0; row < kPage; ++row) {
      const T x = from.data[row_of(row) * from.stride + i];
      to[row * head_dim + i] = x;
      sum += static_cast<float>(x);
    }
    sum *= 1.0f / kPage;
    mean[i] = static_cast<T>(sum);
    for (int row = 0; row < kPage; ++row) {
      const float x = static_cast<float>(from.data[row_of(row) * from.stride + i]) - sum;
      deviation += x * x;
    }
  }
  for (int row = 0; row < kPage; ++row) {
    float square = 0;
    for (int i = lane_id(); i < head_dim; i += 32) {
      const auto x = static_cast<float>(from.data[row_of(row) * from.stride + i]);
      square += x * x;
    }
    norms += sqrtf(warp_sum(square));
  }
  return {warp_sum(deviation), norms};
}

}  // namespace sluice::cuda::refine
