// What the kernels of mode `keys` on the tensor cores share: what is done to scores.

#pragma once

#include "backend/cuda/attention/dense/tile.cuh"
#include "backend/cuda/attention/keys/rows.cuh"

namespace sluice::impl::cuda {

template <int kN>
__device__ void add_bias(float (&scores)[kN][4], const float* bias) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] += bias[n * 8 + 2 * t + i % 2];
}

// first_key: position of the tile's first key.
template <int kN>
__device__ void mask_near(float (&scores)[kN][4], int64_t first_key, int64_t end, bool causal,
                          const int64_t (&positions)[2]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  int last[2];  // of the tile's keys that each half of the rows sees
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t seen = causal ? min(positions[half], end - 1) : end - 1;
    last[half] = static_cast<int>(max(min(seen - first_key, int64_t{8 * kN}), int64_t{-1}));
  }
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (n * 8 + 2 * t + i % 2 > last[i / 2]) scores[n][i] = -INFINITY;
}

}  // namespace sluice::impl::cuda
