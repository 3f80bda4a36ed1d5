// Writes the pages of a settled segment: permuted rows, means, and what the statistics are made of.

#pragma once

#include "backend/cuda/attention/refine/split_keys.cuh"

namespace sluice::impl::cuda::refine {

struct PageSums {
  float deviation;  // squared, of the rows from their mean
  float norms;      // of the rows
};

// Rows of the segment, by position. stride: in elements.
template <typename T>
struct SourceRows {
  const T* data;
  int64_t stride;
};

// Both write one page, whose row i is row rows[i] of `from`, to rows (kPage, head_dim) of the cache
// and its mean (head_dim). A warp's work.

// Eight columns a lane. The deviation is a difference of sums of squares, which is exact to
// round-off of the rows' own squares: as much as scores are. kNorms: or they are not told.
template <bool kNorms>
__device__ PageSums write_page(const SourceRows<__nv_bfloat16>& from, const uint16_t* rows,
                               __nv_bfloat16* to, __nv_bfloat16* mean, int head_dim) {
  const int n_units = head_dim / 8, shift = n_units > 1 ? 32 - __clz(n_units - 1) : 0;
  const int lanes = 1 << shift, unit = lane_id() & (lanes - 1);  // lanes of a row
  const bool any = unit < n_units;
  const auto load = [&](int row) {
    return any ? reinterpret_cast<const uint4*>(from.data + rows[row] * from.stride)[unit]
               : make_uint4(0, 0, 0, 0);
  };
  float sum[8] = {}, squares = 0, norms = 0;
#pragma unroll 4
  for (int row = lane_id() >> shift; row < kPage; row += 32 >> shift) {
    const uint4 words = load(row);
    if (any) reinterpret_cast<uint4*>(to + row * head_dim)[unit] = words;
    float x[8], norm2 = 0;
    widen_eight(words, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum[i] += x[i];
      norm2 = fmaf(x[i], x[i], norm2);
    }
    squares += norm2;
    if constexpr (kNorms) {
      for (int step = lanes / 2; step > 0; step /= 2)
        norm2 += __shfl_xor_sync(kAllLanes, norm2, step);
      if (unit == 0) norms += sqrtf(norm2);
    }
  }
  float of_mean = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    for (int step = lanes; step < 32; step *= 2) sum[i] += __shfl_xor_sync(kAllLanes, sum[i], step);
    sum[i] *= 1.0f / kPage;
    of_mean = fmaf(sum[i], sum[i], of_mean);
  }
  if (any && lane_id() < lanes) reinterpret_cast<uint4*>(mean)[unit] = narrowed_eight(sum);
  if (lane_id() < lanes) squares -= kPage * of_mean;
  const float deviation = warp_sum(squares);
  return {deviation < 0 ? 0.0f : deviation, warp_sum(norms)};
}

// Of any dtype, head size and alignment.
template <typename T>
__device__ PageSums write_page_plain(const SourceRows<T>& from, const uint16_t* rows, T* to,
                                     T* mean, int head_dim) {
  float deviation = 0, norms = 0;
  for (int i = lane_id(); i < head_dim; i += 32) {
    float sum = 0;
    for (int row = 0; row < kPage; ++row) {
      const T x = from.data[rows[row] * from.stride + i];
      to[row * head_dim + i] = x;
      sum += static_cast<float>(x);
    }
    sum *= 1.0f / kPage;
    mean[i] = static_cast<T>(sum);
    for (int row = 0; row < kPage; ++row) {
      const float x = static_cast<float>(from.data[rows[row] * from.stride + i]) - sum;
      deviation += x * x;
    }
  }
  for (int row = 0; row < kPage; ++row) {
    float square = 0;
    for (int i = lane_id(); i < head_dim; i += 32) {
      const auto x = static_cast<float>(from.data[rows[row] * from.stride + i]);
      square += x * x;
    }
    norms += sqrtf(warp_sum(square));
  }
  return {warp_sum(deviation), norms};
}

}  // namespace sluice::impl::cuda::refine
