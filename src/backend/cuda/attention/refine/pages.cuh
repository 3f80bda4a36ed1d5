// Writes the pages of a settled segment: permuted rows, means, and what the statistics are made of.

#pragma once

#include "backend/cuda/attention/refine/estimate.cuh"
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
// and its mean (head_dim), and the squared deviations by dimension to columns (head_dim) in shared
// memory. A warp's work.

// Eight columns a lane. Deviations are those from the page's first row, less that row's own: they
// do not grow with what all rows share. kNorms: or they are not told.
template <bool kNorms>
__device__ PageSums write_page(const SourceRows<__nv_bfloat16>& from, const uint16_t* rows,
                               __nv_bfloat16* to, __nv_bfloat16* mean, int head_dim,
                               float* columns) {
  const int n_units = head_dim / 8, shift = n_units > 1 ? 32 - __clz(n_units - 1) : 0;
  const int lanes = 1 << shift, unit = lane_id() & (lanes - 1);  // lanes of a row
  const bool any = unit < n_units;
  const auto load = [&](int row) {
    return any ? reinterpret_cast<const uint4*>(from.data + rows[row] * from.stride)[unit]
               : make_uint4(0, 0, 0, 0);
  };
  float base[8], sum[8] = {}, squares[8] = {}, norms = 0;
  widen_eight(load(0), base);
#pragma unroll 4
  for (int row = lane_id() >> shift; row < kPage; row += 32 >> shift) {
    const uint4 words = load(row);
    if (any) reinterpret_cast<uint4*>(to + row * head_dim)[unit] = words;
    float x[8], norm2 = 0;
    widen_eight(words, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float difference = x[i] - base[i];
      sum[i] += difference;
      squares[i] = fmaf(difference, difference, squares[i]);
      norm2 = fmaf(x[i], x[i], norm2);
    }
    if constexpr (kNorms) {
      for (int step = lanes / 2; step > 0; step /= 2)
        norm2 += __shfl_xor_sync(kAllLanes, norm2, step);
      if (unit == 0) norms += sqrtf(norm2);
    }
  }
  float deviation = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    for (int step = lanes; step < 32; step *= 2) {
      sum[i] += __shfl_xor_sync(kAllLanes, sum[i], step);
      squares[i] += __shfl_xor_sync(kAllLanes, squares[i], step);
    }
    const float shift_of_mean = sum[i] * (1.0f / kPage);
    squares[i] = fmaxf(fmaf(-shift_of_mean, sum[i], squares[i]), 0.0f);
    sum[i] = base[i] + shift_of_mean;
    if (lane_id() < lanes) deviation += squares[i];
  }
  if (any && lane_id() < lanes) {
    reinterpret_cast<uint4*>(mean)[unit] = narrowed_eight(sum);
#pragma unroll
    for (int i = 0; i < 8; ++i) columns[unit * 8 + i] = squares[i];
  }
  return {warp_sum(deviation), warp_sum(norms)};
}

// Of any dtype, head size and alignment.
template <typename T>
__device__ PageSums write_page_plain(const SourceRows<T>& from, const uint16_t* rows, T* to,
                                     T* mean, int head_dim, float* columns) {
  float deviation = 0, norms = 0;
  for (int i = lane_id(); i < head_dim; i += 32) {
    float sum = 0, squares = 0;
    for (int row = 0; row < kPage; ++row) {
      const T x = from.data[rows[row] * from.stride + i];
      to[row * head_dim + i] = x;
      sum += static_cast<float>(x);
    }
    sum *= 1.0f / kPage;
    mean[i] = static_cast<T>(sum);
    for (int row = 0; row < kPage; ++row) {
      const float x = static_cast<float>(from.data[rows[row] * from.stride + i]) - sum;
      squares += x * x;
    }
    columns[i] = squares;
    deviation += squares;
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

// ClusterStats::spreads of a page from its columns, in lane 0.
__device__ inline uint4 spreads_of(const float* columns, const DeviceGroups& groups) {
  __syncwarp();  // all columns are there
  const int group = lane_id() / 4;
  const int begin = groups.begins[group], end = groups.begins[group + 1];
  float sum = 0;
  for (int i = begin + lane_id() % 4; i < end; i += 4) sum += columns[groups.dims[i]];
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  const float mine = end > begin ? sum / static_cast<float>(kPage * (end - begin)) : 0.0f;
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    pairs[i] =
        narrowed(__shfl_sync(kAllLanes, mine, 8 * i), __shfl_sync(kAllLanes, mine, 8 * i + 4));
  __syncwarp();  // the next page takes the place of the columns
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

}  // namespace sluice::impl::cuda::refine
