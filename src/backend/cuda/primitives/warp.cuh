// Sums and maxima over the lanes of a warp; every lane gets the result.

#pragma once

namespace sluice::impl::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;

template <typename T>
__device__ T warp_sum(T x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}
// Of floats. What is no number does not count.
template <typename T>
__device__ T warp_max(T x) {
  for (int step = 16; step > 0; step /= 2) x = fmax(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

}  // namespace sluice::impl::cuda
