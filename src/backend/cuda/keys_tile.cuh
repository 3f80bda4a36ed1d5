// What the kernels of mode `keys` on the matrix units share: what is done to scores.

#pragma once

#include "backend/cuda/attend_tile.cuh"
#include "backend/cuda/keys_rows.cuh"

namespace sluice::cuda {

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
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t key = first_key + n * 8 + 2 * t + i % 2;
      if (key >= end || (causal && key > positions[i / 2])) scores[n][i] = -INFINITY;
    }
}

}  // namespace sluice::cuda
