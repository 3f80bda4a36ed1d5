// Where a graded row is cut, found by one block.

#pragma once

#include "backend/cuda/primitives/block_scan.cuh"
#include "backend/cuda/primitives/element.cuh"
#include "backend/cuda/subspace/kernels.h"

namespace sluice::impl::cuda::subspace {

__device__ inline uint32_t magnitude_bits(float x) {
  const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
  return bits > 0x7f800000u ? 0x7f800000u : bits;
}

constexpr int kGradeThreads = 1024;
constexpr int kBins = 2048;
// 31 bits of magnitude in three digits, the highest first.
constexpr int kDigits = 3;
__device__ constexpr int kShifts[kDigits] = {20, 10, 0};
__device__ constexpr int kWidths[kDigits] = {11, 10, 10};

// The cut lies where the energy of all smaller elements passes the budget: found digit by digit
// from sums of energy in bins. The sums are float64 in any order, so a cut whose neighbours come
// within their error of the budget is unsure. Every thread of the block gets it.
__device__ inline RowCut cut_of(const ConstRowsView& x, int64_t row, int64_t n,
                                double squared_epsilon) {
  __shared__ double bins[kBins];
  __shared__ double shared[kGradeThreads / 32];
  __shared__ double below, next_below;  // energy of the elements below all bins
  __shared__ int digit, last;           // where the budget is passed; the last with anything in it
  const auto each = [&](auto&& body) {
    for (int64_t i = threadIdx.x; i < n; i += kGradeThreads) {
      float value[1];
      load<1>(x, row, i, value);
      const uint32_t bits = magnitude_bits(value[0]);
      const double size = __uint_as_float(bits);
      body(bits, size * size);
    }
  };
  double sum = 0;
  each([&](uint32_t, double energy) { sum += energy; });
  const double total = block_sum(sum, shared);
  const double budget = isfinite(total) ? squared_epsilon * total : 0;

  uint32_t prefix = 0;
  bool all_left_out = false;
  if (threadIdx.x == 0) below = 0;
  for (int d = 0; d < kDigits && budget > 0 && !all_left_out; ++d) {
    const int shift = kShifts[d], n_bins = 1 << kWidths[d];
    for (int i = static_cast<int>(threadIdx.x); i < n_bins; i += kGradeThreads) bins[i] = 0;
    __syncthreads();
    each([&](uint32_t bits, double energy) {
      if (d == 0 || bits >> (shift + kWidths[d]) == prefix >> (shift + kWidths[d]))
        atomicAdd(&bins[bits >> shift & static_cast<uint32_t>(n_bins - 1)], energy);
    });
    __syncthreads();
    const int per_thread = n_bins / kGradeThreads,
              mine = static_cast<int>(threadIdx.x) * per_thread;
    double energy = 0;
    for (int i = 0; i < per_thread; ++i) energy += bins[mine + i];
    double before = below + sum_before(energy, shared);
    if (threadIdx.x == 0) {
      digit = n_bins;
      last = -1;
    }
    __syncthreads();
    for (int i = mine; i < mine + per_thread; ++i) {
      if (bins[i] == 0) continue;
      atomicMax(&last, i);
      if (before + bins[i] > budget) atomicMin(&digit, i);
      before += bins[i];
    }
    __syncthreads();
    // Past the first digit the cut is known to lie here, whatever the rounding.
    const int found = digit < n_bins || d == 0 ? digit : last;
    all_left_out = found == n_bins;
    if (!all_left_out) prefix |= static_cast<uint32_t>(found) << shift;
    for (int i = mine + per_thread - 1; i >= mine; --i) {
      before -= bins[i];
      if (i == found) next_below = before;
    }
    __syncthreads();
    if (threadIdx.x == 0 && !all_left_out) below = next_below;
    __syncthreads();
  }

  // Without a budget only zeros go.
  const uint32_t cut = budget > 0 ? (all_left_out ? kAboveAll : prefix) : 1;
  int under = 0, equal = 0;
  each([&](uint32_t bits, double) {
    under += bits < cut;
    equal += bits == cut;
  });
  const auto n_under = static_cast<int>(block_sum(static_cast<double>(under), shared));
  const auto n_equal = static_cast<int>(block_sum(static_cast<double>(equal), shared));
  RowCut result{cut, 0, static_cast<int32_t>(n - n_under), 0};
  if (budget > 0) {
    const double error = (4.0 * static_cast<double>(n) + 64) * 0x1p-53 * total;
    const double size = __uint_as_float(cut), energy = size * size;
    if (all_left_out) {
      result.unsure = total + error >= budget;
    } else {
      const double ties = floor((budget - below) / energy);
      result.n_ties = static_cast<int>(fmin(fmax(ties, 0.0), static_cast<double>(n_equal)));
      const double left_out = below + result.n_ties * energy;
      result.unsure = !(left_out + error < budget && left_out + energy - error > budget) ||
                      result.n_ties == n_equal;
      result.n_kept -= result.n_ties;
    }
  }
  return result;
}

// Whether elements are left out, which all threads of a block ask in the order of the row.
class DropFilter {
 public:
  // shared: one place per warp.
  __device__ DropFilter(const RowCut& cut, int* shared) : cut_(cut), shared_(shared) {}
  __device__ bool drops(uint32_t bits, bool exists) {
    if (cut_.n_ties == 0) return bits < cut_.bits;
    const bool tie = exists && bits == cut_.bits;
    int all;
    const int place = n_ties_ + place_among(tie, shared_, &all);
    n_ties_ += all;
    return bits < cut_.bits || (tie && place < cut_.n_ties);
  }

 private:
  RowCut cut_;
  int* shared_;
  int n_ties_ = 0;  // so far
};

}  // namespace sluice::impl::cuda::subspace
