// The keys of a segment as split.cuh takes them: the dimensions in which they vary most, as bf16 in
// shared memory.

#pragma once

#include "backend/cuda/attention/refine/split_state.cuh"

namespace sluice::impl::cuda::refine {

// kV numbers of a row, in one load where kV is 8 (of bf16, aligned to 16 bytes).
template <int kV, typename T>
__device__ void load_some(float (&to)[kV], const T* from) {
  if constexpr (kV == 8) {
    widen_eight(*reinterpret_cast<const uint4*>(from), to);
  } else {
    static_assert(kV == 1);
    to[0] = static_cast<float>(*from);
  }
}

// Rows of a matrix as the threads of a block share them: a thread has the same kV columns of every
// n_sharing-th row.
struct Shares {
  int unit, row, n_sharing;
  bool any;

  __device__ Shares(int n_units) {
    const int shift = n_units > 1 ? 32 - __clz(n_units - 1) : 0;  // threads of a row
    const int thread = static_cast<int>(threadIdx.x);
    unit = thread & ((1 << shift) - 1);
    row = thread >> shift;
    n_sharing = kSplitThreads >> shift;
    any = unit < n_units;
  }
};

// s.slots: the kDims dimensions of largest variance have a slot, in this order; of equal ones the
// first comes first. Differences from the first row are summed: they are not much larger than
// deviations.
template <int kV, typename T>
__device__ void choose_dims(const Split& s, const T* keys, int64_t stride, int head_dim) {
  const Shares mine(head_dim / kV);
  const int thread = static_cast<int>(threadIdx.x);
  float* sums = s.scratch;                     // (n_sharing, head_dim)
  float* squares = sums + kSplitThreads * kV;  // (n_sharing, head_dim)
  float* variances = s.vectors;                // (head_dim)
  static_assert(2 * kSplitThreads * kV <= Split::kScratch && kSplitWarps * kDims >= 256);
  if (mine.any) {
    const T* column = keys + mine.unit * kV;
    float first[kV], sum[kV] = {}, square[kV] = {};
    load_some<kV>(first, column);
#pragma unroll 4
    for (int row = mine.row; row < s.n_rows; row += mine.n_sharing) {
      float x[kV];
      load_some<kV>(x, column + row * stride);
#pragma unroll
      for (int i = 0; i < kV; ++i) {
        const float d = x[i] - first[i];
        sum[i] += d;
        square[i] = fmaf(d, d, square[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kV; ++i) {
      sums[mine.row * head_dim + mine.unit * kV + i] = sum[i];
      squares[mine.row * head_dim + mine.unit * kV + i] = square[i];
    }
  }
  __syncthreads();
  if (thread < head_dim) {
    float sum = 0, square = 0;
    for (int i = 0; i < mine.n_sharing; ++i) {
      sum += sums[i * head_dim + thread];
      square += squares[i * head_dim + thread];
    }
    const float variance = square - sum * sum / static_cast<float>(s.n_rows);
    variances[thread] = isnan(variance) ? 0.0f : variance;
  }
  __syncthreads();
  if (thread < head_dim) {
    int rank = 0;
    for (int i = 0; i < head_dim; ++i)
      rank += variances[i] > variances[thread] || (variances[i] == variances[thread] && i < thread);
    s.slots[thread] = static_cast<uint8_t>(min(rank, kDims));
  }
  __syncthreads();
}

// Fills s.keys. Slots without a dimension, of short heads, are zeros.
template <int kV, typename T>
__device__ void load_keys(const Split& s, const T* keys, int64_t stride, int head_dim) {
  if (head_dim < kDims) {
    auto* words = reinterpret_cast<uint4*>(s.keys);
    for (int i = static_cast<int>(threadIdx.x); i < s.n_rows * kDims / 8; i += kSplitThreads)
      words[i] = make_uint4(0, 0, 0, 0);
  }
  choose_dims<kV>(s, keys, stride, head_dim);
  const Shares mine(head_dim / kV);
  if (mine.any) {
    int slots[kV];
#pragma unroll
    for (int i = 0; i < kV; ++i) slots[i] = s.slots[mine.unit * kV + i];
    if constexpr (kV == 8) {
      // Rows of a thread are multiples of eight apart: units change places alike in all of them.
      int at[kV];
#pragma unroll
      for (int i = 0; i < kV; ++i)
        at[i] = static_cast<int>(s.unit(mine.row, slots[i] / 8) - s.keys) + slots[i] % 8;
#pragma unroll 4
      for (int row = mine.row, moved = 0; row < s.n_rows;
           row += mine.n_sharing, moved += mine.n_sharing * kDims) {
        const uint4 words = *reinterpret_cast<const uint4*>(keys + row * stride + mine.unit * kV);
        const auto* x = reinterpret_cast<const __nv_bfloat16*>(&words);
#pragma unroll
        for (int i = 0; i < kV; ++i)
          if (slots[i] < kDims) s.keys[at[i] + moved] = x[i];
      }
    } else {
      for (int row = mine.row; row < s.n_rows; row += mine.n_sharing)
        if (slots[0] < kDims)
          s.unit(row, slots[0] / 8)[slots[0] % 8] =
              __float2bfloat16_rn(static_cast<float>(keys[row * stride + mine.unit]));
    }
  }
  __syncthreads();
}

}  // namespace sluice::impl::cuda::refine
