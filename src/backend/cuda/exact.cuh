// The sums that decide pairs of tokens, on the device; backend/exact.h has them for the host. A
// warp works on one pair at a time.

#pragma once

#include "backend/cuda/element.cuh"
#include "backend/cuda/select_kernels.h"

namespace sluice::cuda {

struct Pair {
  const ExactRows& a;
  int64_t row_a;
  const ExactRows& b;
  int64_t row_b;
  int64_t d;
  bool bf16;
};

// Product of the unit elements at i: exact in float64.
__device__ inline double unit_product(const Pair& pair, int64_t i) {
  const auto unit = [&](const ExactRows& rows, int64_t row) {
    float x[1];
    load<1>(ConstRowsView{static_cast<const std::byte*>(rows.data), rows.stride, pair.bf16}, row, i,
            x);
    return double{__double2float_rn(double{x[0]} * rows.inverse[row])};
  };
  return unit(pair.a, pair.row_a) * unit(pair.b, pair.row_b);
}

__device__ inline bool has_zero_row(const Pair& pair) {
  return pair.a.inverse[pair.row_a] == 0 || pair.b.inverse[pair.row_b] == 0;
}

// In any order: within sum_error(d) of the sum in order.
__device__ inline double quick_cosine(const Pair& pair) {
  if (has_zero_row(pair)) return 0;
  double sum = 0;
  for (int64_t i = threadIdx.x % 32; i < pair.d; i += 32) sum += unit_product(pair, i);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

// Two orders of d additions, each off by at most 2^-53 of partial sums that no product of unit rows
// makes larger than 1; doubled, for elements that are rounded up.
__device__ inline double sum_error(int64_t d) { return static_cast<double>(d) * 0x1p-51; }

// In index order, as the definition has it.
__device__ inline double ordered_cosine(const Pair& pair) {
  if (has_zero_row(pair)) return 0;
  double sum = 0;
  for (int64_t first = 0; first < pair.d; first += 32) {
    const int64_t i = first + threadIdx.x % 32;
    const double product = i < pair.d ? unit_product(pair, i) : 0.0;
    const int n = static_cast<int>(pair.d - first < 32 ? pair.d - first : 32);
    for (int lane = 0; lane < n; ++lane) sum += __shfl_sync(0xffffffffu, product, lane);
  }
  return sum;
}

// Whether the cosine, or its size, is at least the threshold.
__device__ inline bool reaches(const Pair& pair, bool absolute, double threshold) {
  const auto size = [&](double cosine) { return absolute ? fabs(cosine) : cosine; };
  const double quick = size(quick_cosine(pair));
  if (fabs(quick - threshold) > sum_error(pair.d)) return quick >= threshold;
  return size(ordered_cosine(pair)) >= threshold;
}

}  // namespace sluice::cuda
