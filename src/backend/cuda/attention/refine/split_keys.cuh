// The keys of a segment as split.cuh takes them: bf16 in shared memory on tensor cores, or rows of
// any dtype and size in global memory.

#pragma once

#include "backend/cuda/attention/refine/split.cuh"
#include "backend/cuda/mma.cuh"

namespace sluice::cuda::refine {

// Rows by place; head_dim is a multiple of 16. The stride is an odd number of 16-byte units, so
// that a column of 8 rows lies in different banks.
struct SharedKeys {
  __nv_bfloat16* data;  // (n_rows, stride)
  int stride;

  static __host__ __device__ int stride_of(int head_dim) { return head_dim + 8; }
  __device__ float at(const Split&, int place, int i) const {
    return __bfloat162float(data[place * stride + i]);
  }
  __device__ void project(const Split& s) const;
  __device__ void combine(const Split& s, bool mean) const;
  __device__ void permute(const Split& s, const uint32_t* order) const;
};

// Two elements of a column; those after the parts are zero.
__device__ inline uint32_t pair_of(const __nv_bfloat16* parts, int stride, int column, int i) {
  return column < kParts ? *reinterpret_cast<const uint32_t*>(parts + column * stride + i) : 0;
}
// The sum over the columns of a product's row, in lanes 0 and 1 of its four.
__device__ inline float sum_of_columns(float even, float odd) {
  const float sum = even + odd;
  return sum + __shfl_xor_sync(kAllLanes, sum, 1);
}

// A warp per page: (16, head_dim) x (head_dim, 8).
__device__ inline void SharedKeys::project(const Split& s) const {
  const int lane = lane_id(), column = lane / 4, t = lane % 4;
  for (int page = warp_id(); page < s.n_pages; page += kSplitWarps) {
    if (s.count[page] < 2) continue;
    const __nv_bfloat16* vector = s.vector(s.group[page]);
    const __nv_bfloat16* row = data + (page * kPage + lane % 16) * stride + lane / 16 * 8;
    float c[4] = {};
#pragma unroll 4
    for (int k = 0; k < s.head_dim; k += 16) {
      uint32_t a[4];
      load_matrices(a, row + k);
      mma_bf16(c, a, pair_of(vector, s.vector_stride, column, k + 2 * t),
               pair_of(vector, s.vector_stride, column, k + 2 * t + 8));
    }
    const float upper = sum_of_columns(c[0], c[1]), lower = sum_of_columns(c[2], c[3]);
    if (t == 0) put_projection(s, page * kPage + column, upper);
    if (t == 1) put_projection(s, page * kPage + column + 8, lower);
  }
}

// A warp per group and 16 dimensions: (16, rows of the group) x (rows of the group, 8).
__device__ inline void SharedKeys::combine(const Split& s, bool mean) const {
  const int lane = lane_id(), column = lane / 4, t = lane % 4, n_slices = s.head_dim / 16;
  for (int item = warp_id(); item < *s.n_groups * n_slices; item += kSplitWarps) {
    const int group = item / n_slices, slice = item % n_slices * 16;
    const int begin = s.begin[group], end = begin + s.count[begin];
    const __nv_bfloat16* row =
        data + (lane / 16 * 8 + lane % 8) * stride + slice + lane / 8 % 2 * 8;
    float c[2][4] = {};
#pragma unroll 2
    for (int page = begin; page < end; page += 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (page + i >= end) continue;
        const int place = (page + i) * kPage;
        uint32_t a[4];
        load_matrices_transposed(a, row + place * stride);
        mma_bf16(c[i], a, pair_of(s.weights, s.weight_stride, column, place + 2 * t),
                 pair_of(s.weights, s.weight_stride, column, place + 2 * t + 8));
      }
    }
    const float upper = sum_of_columns(c[0][0] + c[1][0], c[0][1] + c[1][1]);
    const float lower = sum_of_columns(c[0][2] + c[1][2], c[0][3] + c[1][3]);
    if (t == 0) put_sum(s, group, slice + column, upper, mean);
    if (t == 1) put_sum(s, group, slice + column + 8, lower, mean);
  }
}

// Through registers, some columns of 16 bytes at a time.
__device__ inline void SharedKeys::permute(const Split& s, const uint32_t* order) const {
  constexpr int kHeld = 4;
  const int n_units = s.head_dim / 8, columns = kSplitThreads * kHeld / s.n_rows;
  const auto unit = [&](int place, int column) {
    return reinterpret_cast<uint4*>(data + place * stride + column * 8);
  };
  for (int first = 0; first < n_units; first += columns) {
    const int n = min(columns, n_units - first) * s.n_rows;
    uint4 held[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * kSplitThreads;
      if (i < n)
        held[k] = *unit(static_cast<int>(order[i % s.n_rows] & 0xffffu), first + i / s.n_rows);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * kSplitThreads;
      if (i < n) *unit(i % s.n_rows, first + i / s.n_rows) = held[k];
    }
  }
  __syncthreads();
}

// Rows of the segment, which stay where they are.
template <typename T>
struct GlobalKeys {
  const T* data;  // (n_rows, head_dim)

  __device__ float at(const Split& s, int place, int i) const {
    return static_cast<float>(data[int64_t{s.rows[place]} * s.head_dim + i]);
  }
  // A warp per row.
  __device__ void project(const Split& s) const {
    for (int place = warp_id(); place < s.n_rows; place += kSplitWarps) {
      if (s.count[place / kPage] < 2) continue;
      const __nv_bfloat16* vector = s.vector(s.group[place / kPage]);
      float dot = 0;
      for (int i = lane_id(); i < s.head_dim; i += 32)
        dot += at(s, place, i) * joined(vector, s.vector_stride, i);
      dot = warp_sum(dot);
      if (lane_id() == 0) put_projection(s, place, dot);
    }
  }
  // A thread per group and dimension.
  __device__ void combine(const Split& s, bool mean) const {
    for (int item = static_cast<int>(threadIdx.x); item < *s.n_groups * s.head_dim;
         item += kSplitThreads) {
      const int group = item / s.head_dim, i = item % s.head_dim;
      const int begin = s.begin[group] * kPage, end = begin + s.count[s.begin[group]] * kPage;
      float sum = 0;
      for (int place = begin; place < end; ++place)
        sum += joined(s.weights, s.weight_stride, place) * at(s, place, i);
      put_sum(s, group, i, sum, mean);
    }
  }
  __device__ void permute(const Split&, const uint32_t*) const {}
};

}  // namespace sluice::cuda::refine
