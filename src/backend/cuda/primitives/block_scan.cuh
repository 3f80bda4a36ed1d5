// What the threads of a block before mine hold.

#pragma once

#include <cstdint>

namespace sluice::impl::cuda {

// Threads of this block before mine for which `flag` holds; *all: how many there are in the block.
// shared: one place per warp.
__device__ inline int place_among(bool flag, int* shared, int* all) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t votes = __ballot_sync(0xffffffffu, flag);
  __syncthreads();  // whoever reads the last counts is done
  if (lane == 0) shared[warp] = __popc(votes);
  __syncthreads();
  int before = 0;
  *all = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) {
    if (w < warp) before += shared[w];
    *all += shared[w];
  }
  return before + __popc(votes & ((1u << lane) - 1));
}

// The sum over the threads of this block before mine. shared: one place per warp.
__device__ inline double sum_before(double value, double* shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  double up_to = value;
  for (int step = 1; step < 32; step *= 2) {
    const double other = __shfl_up_sync(0xffffffffu, up_to, step);
    if (lane >= step) up_to += other;
  }
  __syncthreads();  // whoever reads the last sums is done
  if (lane == 31) shared[warp] = up_to;
  __syncthreads();
  double before = up_to - value;
  for (int w = 0; w < warp; ++w) before += shared[w];
  return before;
}

}  // namespace sluice::impl::cuda
