// Whether a row is near enough to the span of V.
//
//   ||x - V c||^2 = ||x||^2 - 2 c.h + c.c + c.(E c),   h = V^T x,   E = V^T V - 1,
//
// where c is h rounded, and E what V, as it is kept, is short of orthonormal. Most decisions need
// only the diagonal of E and the norm of its off-diagonal part. Where the result is too near to
// epsilon, all of E is used; where that cancels, the definition.

#pragma once

#include "backend/cuda/linear/row.cuh"
#include "backend/cuda/subspace/kernels.h"

namespace sluice::impl::cuda::subspace {

constexpr int kGateWarps = 8;
constexpr int kGateThreads = 32 * kGateWarps;
// What f32 sums make the square of a residual err by, in parts of ||x||^2. A product with a
// direction of length 1 is the sum of parts that are no more than 40 additions deep, so it errs by
// 40 * 2^-24 of ||x|| at most, and counts twice. Those of different directions err on their own, so
// that together they err by no more than one at its worst, but for what tensor cores cut off: all
// products alike, by less than 4 * 2^-23 of each.
constexpr double kRoundOff = 1e-5;

// Of a row.
enum RowPath : int32_t { kSlow = 0, kFast = 1, kOpen = 2 };

// What a decision needs in addition to the row.
struct Gauge {
  // The excess is what ||x - V c||^2 may be at most, less what epsilon allows: where it is below 0
  // the row is near enough. norm_weight: of ||x||^2 in it.
  double norm_weight;
  const float* diagonal;       // (rank) of E
  ConstRowsView overlaps;      // (rank, rank) twice E below the diagonal, zeros elsewhere
  double deviation, rounding;  // norms of E's off-diagonal part and of its rounding
  double epsilon;
};

// ||x||^2, ||x - V c||^2 without the off-diagonal part of E, and ||c||^2.
struct Estimate {
  double all, rest, inside;
};

// kOpen where the estimate, which errs by no more than `error`, is too near to epsilon, or not a
// number.
__device__ inline RowPath path_of(const Gauge& gauge, const Estimate& found, double error) {
  const double edge = gauge.epsilon * gauge.epsilon * found.all;
  if (found.rest + error < edge) return kFast;
  if (found.rest - error > edge) return kSlow;
  return kOpen;
}
__device__ inline RowPath first_path(const Gauge& gauge, const Estimate& found) {
  return path_of(gauge, found, gauge.deviation * found.inside + kRoundOff * found.all);
}

__device__ inline float coordinate(const std::byte* coordinates, int64_t j) {
  return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(coordinates)[j]);
}

// c.(E c) of the off-diagonal part of E, by a block.
__device__ inline double overlap(const ConstRowsView& overlaps, const std::byte* coordinates,
                                 int64_t rank, double* shared) {
  const int64_t lane = threadIdx.x % 32;
  double sum = 0;
  for (int64_t first = 0; first < rank; first += linear::kChunk) {
    const int64_t k = first + 8 * lane;
    float c[8] = {}, e[8];
    if (k < rank) widen_eight(*reinterpret_cast<const uint4*>(coordinates + 2 * k), c);
#pragma unroll 8
    for (int64_t j = threadIdx.x / 32; j < rank; j += kGateWarps) {
      widen_eight(k < j ? linear::read_once(overlaps.data + 2 * (j * overlaps.stride + k))
                        : make_uint4(0, 0, 0, 0),
                  e);
      float dot = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) dot += e[i] * c[i];
      sum += dot * coordinate(coordinates, j);
    }
  }
  return block_sum(sum, shared);
}

// ||x - V c||^2 by its definition, by a block.
__device__ inline double explicit_rest(const linear::RowWeights& vectors, const std::byte* row,
                                       const std::byte* coordinates, double* shared) {
  double sum = 0;
  for (int64_t k = int64_t{threadIdx.x} * 8; k < vectors.depth; k += 8 * kGateThreads) {
    float x[8], v[8];
    double rest[8];
    widen_eight(*reinterpret_cast<const uint4*>(row + 2 * k), x);
    for (int i = 0; i < 8; ++i) rest[i] = x[i];
#pragma unroll 4
    for (int64_t j = 0; j < vectors.n_out; ++j) {
      const double c = coordinate(coordinates, j);
      widen_eight(linear::read_once(vectors.data + 2 * (j * vectors.stride + k)), v);
#pragma unroll
      for (int i = 0; i < 8; ++i) rest[i] -= c * v[i];
    }
    for (int i = 0; i < 8; ++i) sum += rest[i] * rest[i];
  }
  return block_sum(sum, shared);
}

__device__ inline float missed_share(double all, double rest) {
  const double share = all == 0 ? 0 : sqrt(fmax(rest, 0.0) / all);
  return isfinite(share) && isfinite(rest) ? static_cast<float>(share) : 1.0f;
}

}  // namespace sluice::impl::cuda::subspace
