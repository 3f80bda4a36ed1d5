// Attention of one query and one head to a warp, in f32 throughout: the softmax and the weighted
// sum of values. Lanes take keys for the scores and columns for the values.

#pragma once

#include "backend/cuda/primitives/element.cuh"
#include "backend/cuda/primitives/warp.cuh"

namespace sluice::impl::cuda::dense {

// The softmax so far, the same in all lanes.
struct WarpSoftmax {
  float largest = -INFINITY, total = 0;

  // The largest score with those of 32 keys, one to a lane; -inf where there is no key.
  __device__ __forceinline__ float largest_with(float score) const {
    return fmaxf(largest, warp_max(score));
  }
  // What is kept of the sums so far, and the weight of this lane's key.
  struct Step {
    float kept, weight;
  };
  // now: largest_with(score).
  __device__ __forceinline__ Step take(float score, float now) {
    const Step step{expf(largest - now), expf(score - now)};
    largest = now;
    total = total * step.kept + warp_sum(step.weight);
    return step;
  }
};

// Adds the values of the first n lanes' keys to sum, (d); value_at(key, column). kSkipsZeros: those
// of weight 0 are not read, so that they add nothing even where they are infinite.
template <bool kSkipsZeros, typename ValueAt>
__device__ __forceinline__ void add_values(float* sum, int64_t d, const WarpSoftmax::Step& step,
                                           int n, const ValueAt& value_at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // All lanes stay together for the shuffles.
  for (int64_t column = lane; column - lane < d; column += 32) {
    float part = 0;
    for (int key = 0; key < n; ++key) {
      const float weight = __shfl_sync(kAllLanes, step.weight, key);
      if (column >= d || (kSkipsZeros && weight == 0)) continue;
      part += weight * value_at(key, column);
    }
    if (column < d) sum[column] = sum[column] * step.kept + part;
  }
}

}  // namespace sluice::impl::cuda::dense
