// Sums of squares in float64, where they are exact, of numbers that are f32.

#pragma once

#include <cstdint>

namespace sluice::impl::cuda {

// The size of a normal number, without the conversion, which takes long. Smaller ones, and 0,
// become something from 2^-127 to 2^-126; inf and NaN, 2^128 or more.
__device__ inline double normal_size(float x) {
  const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
  return __hiloint2double(static_cast<int>((bits >> 3) + 0x38000000u),
                          static_cast<int>(bits << 29));
}

// The sum of a few, in any order; not finite where one of them is not.
template <int kN>
__device__ double squares_of(const float (&x)[kN]) {
  double sum = 0, odd_sum = 0;
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    double& to = i % 2 == 0 ? sum : odd_sum;
    to = fma(normal_size(x[i]), normal_size(x[i]), to);
  }
  sum += odd_sum;
  // A subnormal number or zero adds at most 2^-252, negligible in such a sum. One that is not
  // finite adds 2^256.
  if (sum > 0x1p-180 && sum < 0x1p250) return sum;
  sum = 0;
  for (const float value : x) sum = fma(double{value}, double{value}, sum);
  return sum;
}

}  // namespace sluice::impl::cuda
