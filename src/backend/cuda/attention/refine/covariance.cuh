// The covariance of a group of keys, in the registers of one warp, and its leading direction.
//
// With g = lane / 4 and t = lane % 4, a vector is kept by rows (numbers 16 m + 8 h + g in
// [m][h], alike in the four lanes of a g) or by columns (numbers 8 n + 2 t + i in [n][i]).

#pragma once

#include "backend/cuda/attention/refine/split_state.cuh"
#include "backend/cuda/primitives/mma.cuh"

namespace sluice::impl::cuda::refine {

using ByRows = float[2][2];
using ByColumns = float[4][2];

__device__ inline void to_columns(ByColumns& to, const ByRows& from) {
  const int t = lane_id() % 4;
#pragma unroll
  for (int n = 0; n < 4; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      to[n][i] = __shfl_sync(kAllLanes, from[n / 2][n % 2], (2 * t + i) * 4);
}
__device__ inline float square_of(const ByRows& x) {
  float sum = x[0][0] * x[0][0] + x[0][1] * x[0][1] + x[1][0] * x[1][0] + x[1][1] * x[1][1];
  for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return sum;
}
// Calls use(dimension, number) in one lane for each.
template <typename Use>
__device__ void for_rows(const ByRows& x, const Use& use) {
  const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (t == 2 * m + h) use(16 * m + 8 * h + g, x[m][h]);
}

class Covariance {
 public:
  // Adds the keys of a page. Its rows as they lie in memory are the right operand, and transposed
  // the left one.
  __device__ void add(const Split& s, int page) {
    const int lane = lane_id();
    const int row = s.rows[page * kPage + lane / 16 * 8 + lane % 8];
    uint32_t a[2][4];  // dimensions 16 m + g of rows 2t ..., 16 m + 8 + g, then of rows 8 further
#pragma unroll
    for (int m = 0; m < 2; ++m) load_matrices_transposed(a[m], s.unit(row, 2 * m + lane / 8 % 2));
    constexpr uint32_t kOnes = 0x3f803f80u;  // two bf16
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < 4; ++n)
        mma_bf16(products_[m][n], a[m], a[n / 2][n % 2], a[n / 2][n % 2 + 2]);
      mma_bf16(sums_[m], a[m], kOnes, kOnes);
    }
  }

  // For warps that have added parts of one group: what this lane has goes to memory, or comes from
  // there. to and from: (Split::kFolded, 32).
  __device__ void store(float* to) const {
    each(*this, [&](int i, const float& x) { to[i * 32 + lane_id()] = x; });
  }
  __device__ void add(const float* from) {
    each(*this, [&](int i, float& x) { x += from[i * 32 + lane_id()]; });
  }

  // Takes off the mean of n keys, which is written to mean (kDims).
  __device__ void centre(int n, float* mean) {
    const float inverse = 1.0f / static_cast<float>(n);
    ByRows means;
    ByColumns columns;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) means[m][h] = sums_[m][2 * h] * inverse;
    to_columns(columns, means);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) products_[m][k][i] -= sums_[m][i / 2 * 2] * columns[k][i % 2];
    for_rows(means, [&](int i, float x) { mean[i] = x; });
  }

  // Power steps from x. Zeros where there is no direction.
  __device__ void lead(ByRows& x) const {
    ByColumns columns;
#pragma unroll 1
    for (int step = 0; step < kPowerSteps; ++step) {
      const float norm2 = square_of(x), inverse = norm2 > 0 ? rsqrtf(norm2) : 0.0f;
      to_columns(columns, x);
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float sum = 0;
#pragma unroll
          for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) sum = fmaf(products_[m][n][2 * h + i], columns[n][i], sum);
          sum += __shfl_xor_sync(kAllLanes, sum, 1);
          sum += __shfl_xor_sync(kAllLanes, sum, 2);
          x[m][h] = sum * inverse;
        }
    }
  }

 private:
  // Calls use(i, number) for the numbers of this lane that differ from other lanes'.
  template <typename Self, typename Use>
  static __device__ void each(Self& self, const Use& use) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) use((m * 4 + n) * 4 + i, self.products_[m][n][i]);
#pragma unroll
      for (int h = 0; h < 2; ++h) use(32 + 2 * m + h, self.sums_[m][2 * h]);
    }
  }

  float products_[2][4][4] = {};  // sums of key x key: row 16 m + g (+ 8), column 8 n + 2 t (+ 1)
  float sums_[2][4] = {};         // of keys: [m][2 h] by rows
};

}  // namespace sluice::impl::cuda::refine
