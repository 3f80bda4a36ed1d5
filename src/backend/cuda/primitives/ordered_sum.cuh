// Sums of squares in index order, as one addition after the other would round them, by the lanes of
// a warp together.
//
// Each lane has a run of the elements. It does not know where the sum stands when its run begins,
// but rounding does not change when a sum is moved by an even number of units in its last place, as
// long as no partial sum passes a power of two by that. So a lane starts from a rough guess, whose
// two lowest bits may be anything, four times; when the true beginning is known, the right one of
// four ends is moved to it. Two bits, since units double where a run passes a power of two. Where
// the move is in doubt the lane adds again.

#pragma once

#include <cmath>
#include <cstdint>

namespace sluice::impl::cuda {

// A finite number, without the conversion, which takes long; its sign is not kept.
__device__ inline double finite_size(float x) {
  const uint32_t bits = __float_as_uint(x);
  return __hiloint2double(static_cast<int>(bits >> 3 & 0x0fffffffu), static_cast<int>(bits << 29)) *
         0x1p896;
}

struct SumRun {
  double base;          // two lowest bits 0
  double ends[4];       // of sums that begin at base, and one, two and three units above it
  double below, above;  // partial sums of the first, around the next power of two above base

  __device__ static uint32_t high_bits(double x) {
    return static_cast<uint32_t>(__double2hiint(x));
  }
  // The power of two above a positive number.
  __device__ static double power_above(double x) {
    return __hiloint2double(static_cast<int>(((high_bits(x) >> 20) + 1) << 20), 0);
  }
  __device__ double begin_at(int k) const {
    return __hiloint2double(__double2hiint(base), __double2loint(base) | k);
  }

  // at(i, x): the run's elements [i kN, (i + 1) kN) of n kN, all finite.
  template <int kN, typename At>
  __device__ void add(double guess, int n, const At& at) {
    base = __hiloint2double(__double2hiint(guess), __double2loint(guess) & ~3);
    for (int k = 0; k < 4; ++k) ends[k] = begin_at(k);
    const uint32_t high = high_bits(power_above(base));
    int passing = 0;  // the elements that pass the power of two
    below = base;
#pragma unroll 2
    for (int i = 0; i < n; ++i) {
      float x[kN];
      at(i, x);
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const double size = finite_size(x[j]);
#pragma unroll
        for (int k = 0; k < 4; ++k)  // a square is exact, so this rounds as a sum does
          ends[k] = fma(size, size, ends[k]);
      }
      if (high_bits(ends[0]) < high) {
        below = ends[0];
        passing = i + 1;
      }
    }
    above = INFINITY;
    if (passing == n) return;
    float x[kN];
    at(passing, x);
    double sum = below;
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      sum = fma(finite_size(x[j]), finite_size(x[j]), sum);
      if (high_bits(sum) < high)
        below = sum;
      else
        above = fmin(above, sum);
    }
  }

  // Where the run ends that begins here, if holds().
  __device__ double end(double begin) const {
    const int k = __double2loint(begin) & 3;
    const double low = k % 2 == 0 ? ends[0] : ends[1], high = k % 2 == 0 ? ends[2] : ends[3];
    return (k < 2 ? low : high) + (begin - begin_at(k));
  }
  __device__ bool holds(double begin) const {
    const double move = begin - begin_at(__double2loint(begin) & 3);
    if (move == 0) return true;
    const double next = power_above(base);
    // The four stay within four units of each other, which are twice as large behind `next`.
    const double far = fabs(move) + 16 * 0x1p-53 * next;
    return high_bits(begin) >> 20 == high_bits(base) >> 20 && below + far < next &&
           above - far >= next && ends[3] + far < 2 * next;
  }
};

// `sum` and the squares of all lanes' runs, one run behind the other, by a warp; n_lanes have one.
// The answer is right in all lanes.
template <int kN, typename At>
__device__ double add_squares_in_order(double sum, int n, int n_lanes, const At& at) {
  constexpr unsigned kWarp = 0xffffffffu;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float rough[4] = {};
#pragma unroll 4
  for (int i = 0; i < n; ++i) {
    float x[kN];
    at(i, x);
#pragma unroll
    for (int j = 0; j < kN; ++j) rough[j % 4] = fmaf(x[j], x[j], rough[j % 4]);
  }
  const double mine = (double{rough[0]} + double{rough[1]}) + (double{rough[2]} + double{rough[3]});
  double upto = mine;
  for (int step = 1; step < 32; step *= 2) {
    const double other = __shfl_up_sync(kWarp, upto, step);
    if (lane >= step) upto += other;
  }
  const double before = __shfl_up_sync(kWarp, upto, 1);
  const double total = __shfl_sync(kWarp, upto, 31);
  const bool sane = total > 0x1p-100 && total < 0x1p120;  // guesses are good, and all is finite
  SumRun run;
  if (sane) run.add<kN>(lane == 0 ? sum : sum + before, n, at);

  for (int from = 0; from < n_lanes;) {
    double begin = sum;
    bool fails = lane >= from && lane < n_lanes;
    if (sane) {
#pragma unroll 4
      for (int i = from; i < n_lanes; ++i) {
        if (lane == i) begin = sum;
        sum = __shfl_sync(kWarp, run.end(sum), i);
      }
      fails = fails && !run.holds(begin);
    }
    const unsigned failing = __ballot_sync(kWarp, fails);
    if (failing == 0) break;
    const int first = __ffs(static_cast<int>(failing)) - 1;
    double again = begin;
    if (lane == first)
      for (int i = 0; i < n; ++i) {
        float x[kN];
        at(i, x);
#pragma unroll
        for (int j = 0; j < kN; ++j) again = fma(double{x[j]}, double{x[j]}, again);
      }
    sum = __shfl_sync(kWarp, again, first);
    from = first + 1;
  }
  return sum;
}

}  // namespace sluice::impl::cuda
