// The sums that decide pairs of tokens, on the device; backend/exact.h has them for the host. A
// warp works on one pair at a time.

#pragma once

#include "backend/cuda/primitives/element.cuh"
#include "backend/cuda/primitives/warp.cuh"
#include "backend/cuda/selection/common/kernels.h"

namespace sluice::impl::cuda::selection {

struct Pair {
  ExactRows a;
  int64_t row_a;
  ExactRows b;
  int64_t row_b;
  int64_t d;
  bool bf16;
};

// Whether the chunk's rows are read where they were given.
__device__ inline bool as_given(const ChunkView& view) {
  return view.rows.given != nullptr && *view.rows.odd == 0;
}
__device__ inline ExactRows exact_rows(const ChunkView& view) {
  return as_given(view)
             ? ExactRows{view.rows.given, view.rows.given_stride, view.rows.exact.inverse}
             : view.rows.exact;
}

// The chunk's row t for the tensor cores.
__device__ inline const uint16_t* matrix_row(const ChunkView& view, int64_t t) {
  return as_given(view) ? view.rows.given + t * view.rows.given_stride
                        : view.rows.prepared + t * view.padded;
}

// Norms that products in f32 are at ease with; rows of zeros have none.
__device__ inline bool is_odd(double inverse) {
  return inverse != 0 && !(inverse > 0x1p-40 && inverse < 0x1p40);
}
// Rows whose squares could leave the range of f32 are moved into it by a power of two.
__device__ inline double range_scale(double inverse) {
  return is_odd(inverse) ? exp2(static_cast<double>(ilogb(inverse))) : 1.0;
}

// A token of the chunk, and a kept column or another token before it.
__device__ inline Pair pair_with_column(const ChunkView& view, int64_t t, int64_t column) {
  return {view.kept.exact, column, exact_rows(view), t, view.d, view.bf16};
}
__device__ inline Pair pair_with_token(const ChunkView& view, int64_t t, int64_t s) {
  const ExactRows rows = exact_rows(view);
  return {rows, s, rows, t, view.d, view.bf16};
}

__device__ inline ConstRowsView rows_of(const ExactRows& rows, bool bf16) {
  return {static_cast<const std::byte*>(rows.data), rows.stride, bf16};
}

// Element i of a row by 1 / norm, before it is rounded to a unit element in f32.
__device__ inline double scaled(const ExactRows& rows, int64_t row, bool bf16, int64_t i,
                                double inverse) {
  float x[1];
  load(rows_of(rows, bf16), row, i, x);
  return double{x[0]} * inverse;
}
// Product of two unit elements: exact in float64.
__device__ inline double unit_product(double a, double b) {
  return double{__double2float_rn(a)} * double{__double2float_rn(b)};
}

__device__ inline bool has_zero_row(const Pair& pair) {
  return pair.a.inverse[pair.row_a] == 0 || pair.b.inverse[pair.row_b] == 0;
}

// Of bf16 rows, in f32 and any order: within rough_error(d) of the sum in order. A lane adds d / 32
// products, each sum off by at most 2^-24 of what is at most 1 in all; the rest is for five sums
// over lanes and for unit elements in f32; doubled. Rows begin at 16 bytes, and zeros follow to a
// multiple of 8.
__device__ inline double rough_cosine(const Pair& pair) {
  if (has_zero_row(pair)) return 0;
  const auto* a = static_cast<const uint16_t*>(pair.a.data) + pair.row_a * pair.a.stride;
  const auto* b = static_cast<const uint16_t*>(pair.b.data) + pair.row_b * pair.b.stride;
  float sum = 0;
#pragma unroll 4
  for (int64_t i = 8 * (threadIdx.x % 32); i < pair.d; i += 8 * 32) {
    const uint4 x = *reinterpret_cast<const uint4*>(a + i);
    const uint4 y = *reinterpret_cast<const uint4*>(b + i);
    const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float2 p = widened(xs[k]), q = widened(ys[k]);
      sum = fmaf(p.y, q.y, fmaf(p.x, q.x, sum));
    }
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return double{sum} * pair.a.inverse[pair.row_a] * pair.b.inverse[pair.row_b];
}
__device__ inline double rough_error(int64_t d) {
  return (static_cast<double>(d) / 32 + 16) * 0x1p-23;
}

// Two orders of d additions, each off by at most 2^-53 of partial sums that no product of unit rows
// makes larger than 1; doubled, for elements that are rounded up.
__device__ inline double sum_error(int64_t d) { return static_cast<double>(d) * 0x1p-51; }
// The same of squares, in parts of a norm: of what is at most 2^-53 of their sum half is left in
// its root; the rest is for roots and quotients; doubled.
__device__ inline double norm_error(int64_t d) { return static_cast<double>(d + 16) * 0x1p-52; }

// Whether a number that errs by `units` of float64 may round to another f32. (Of those too small to
// be normal nothing is left in a sum.)
__device__ inline bool may_round_otherwise(double x, int units) {
  const int cut = __double2loint(x) & 0x1fffffff;  // what f32 has no room for
  return abs(cut - 0x10000000) <= units;
}

struct Cosine {
  double value, error;  // that it may be off by from the sum in order
};

// In any order, of norms whose squares were summed in any order: nearly always with the unit
// elements of the definition. bf16 rows as rough_cosine has them, f32 rows anywhere.
__device__ inline Cosine quick_cosine(const Pair& pair) {
  if (has_zero_row(pair)) return {};
  const double inverse_a = pair.a.inverse[pair.row_a], inverse_b = pair.b.inverse[pair.row_b];
  const auto units = static_cast<int>(norm_error(pair.d) * 0x1p53) + 2;
  double sum = 0;
  float unsure = 0;
  const auto add = [&](float x, float y) {
    const double a = double{x} * inverse_a, b = double{y} * inverse_b;
    const float unit_a = __double2float_rn(a), unit_b = __double2float_rn(b);
    sum += double{unit_a} * double{unit_b};
    const bool may = may_round_otherwise(a, units) | may_round_otherwise(b, units);
    unsure += may ? fabsf(unit_a * unit_b) : 0.0f;
  };
  const auto lane = static_cast<int>(threadIdx.x % 32);
  if (pair.bf16) {
#pragma unroll 2
    for (int64_t i = 8 * lane; i < pair.d; i += 8 * 32) {
      float x[8], y[8];
      load(rows_of(pair.a, true), pair.row_a, i, x);
      load(rows_of(pair.b, true), pair.row_b, i, y);
#pragma unroll
      for (int k = 0; k < 8; ++k) add(x[k], y[k]);
    }
  } else {
#pragma unroll 4
    for (int64_t i = lane; i < pair.d; i += 32) {
      float x[1], y[1];
      load(rows_of(pair.a, false), pair.row_a, i, x);
      load(rows_of(pair.b, false), pair.row_b, i, y);
      add(x[0], y[0]);
    }
  }
  for (int step = 16; step > 0; step /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, step);
    unsure += __shfl_xor_sync(kAllLanes, unsure, step);
  }
  return {sum, sum_error(pair.d) + 0x1p-21 * double{unsure}};  // 2^-23 of each factor; doubled
}

// 1 / norm, of a sum of squares; 0 where there is none. A part of the definition of a pair.
__device__ inline double inverse_of(double squares) {
  return squares > 0 ? 1 / sqrt(squares) : 0.0;
}
__device__ inline double ordered_inverse(const ExactRows& rows, int64_t row, int64_t d, bool bf16) {
  double sum = 0;
  for (int64_t first = 0; first < d; first += 32) {
    const int64_t i = first + threadIdx.x % 32;
    const double own = i < d ? scaled(rows, row, bf16, i, 1) : 0.0;
#pragma unroll 2  // few pairs meet it, and all would pay for its length
    for (int lane = 0; lane < 32; ++lane) {
      const double x = __shfl_sync(kAllLanes, own, lane);
      sum = fma(x, x, sum);  // as a sum rounds: the square is exact, and zeros change nothing
    }
  }
  return inverse_of(sum);
}

// In index order, as the definition has it, and so the norms.
__device__ inline double ordered_cosine(const Pair& pair) {
  if (has_zero_row(pair)) return 0;
  const double inverse_a = ordered_inverse(pair.a, pair.row_a, pair.d, pair.bf16);
  const double inverse_b = ordered_inverse(pair.b, pair.row_b, pair.d, pair.bf16);
  double sum = 0;
  for (int64_t first = 0; first < pair.d; first += 32) {
    const int64_t i = first + threadIdx.x % 32;
    const double product = i < pair.d
                               ? unit_product(scaled(pair.a, pair.row_a, pair.bf16, i, inverse_a),
                                              scaled(pair.b, pair.row_b, pair.bf16, i, inverse_b))
                               : 0.0;
    const int n = static_cast<int>(pair.d - first < 32 ? pair.d - first : 32);
    for (int lane = 0; lane < n; ++lane) sum += __shfl_sync(kAllLanes, product, lane);
  }
  return sum;
}

// Whether the cosine, or its size, is at least the threshold: by sums in float64.
__device__ inline bool reaches_exactly(const Pair& pair, bool absolute, double threshold) {
  const auto size = [&](double cosine) { return absolute ? fabs(cosine) : cosine; };
  const Cosine quick = quick_cosine(pair);
  const double found = size(quick.value);
  if (fabs(found - threshold) > quick.error) return found >= threshold;
  return size(ordered_cosine(pair)) >= threshold;
}
// The same, with a look in f32 first.
__device__ inline bool reaches(const Pair& pair, bool absolute, double threshold) {
  if (pair.bf16) {
    const double rough = rough_cosine(pair), size = absolute ? fabs(rough) : rough;
    if (fabs(size - threshold) > rough_error(pair.d)) return size >= threshold;
  }
  return reaches_exactly(pair, absolute, threshold);
}

// The flags of a column that a set compares tokens with.
__device__ inline uint8_t column_flags(bool rep, bool inherited) {
  return static_cast<uint8_t>(kIsAny | (rep ? kIsRep : 0) | (inherited ? kIsInherited : 0) |
                              (rep && inherited ? kIsKept : 0));
}

}  // namespace sluice::impl::cuda::selection
