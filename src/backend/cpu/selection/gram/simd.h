// SIMD kernels under the comparison of rows.

#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace sluice::impl::cpu::selection {

// Of columns in panels of `width`, at most 32, those panels where a value is above the limit: bit i
// is panel i.
struct PanelsAbove {
  int64_t width;
  float limit;
};

// The largest of c[j] * factors[j], or of its magnitude, plus mask[j]: masks are 0, or -infinity
// where a column does not count.
struct MaximumArgs {
  const float* c;        // (n)
  const float* factors;  // (n)
  const float* mask;     // (n)
  int64_t n;
  bool absolute;
};
float masked_maximum(const MaximumArgs& args);
uint32_t masked_panels(const MaximumArgs& args, const PanelsAbove& above);

// The largest of c[j], or of its magnitude, plus residual * residuals[j] plus mask[j]: a bound from
// above, or with a negative residual from below.
struct BoundArgs {
  const float* c;          // (n)
  const float* residuals;  // (n)
  const float* mask;       // (n)
  int64_t n;
  float residual;
  bool absolute;
};
float masked_bound(const BoundArgs& args);
uint32_t bound_panels(const BoundArgs& args, const PanelsAbove& above);

// Float64 sums of squares of kSquareRows rows, each in index order: side by side, because one sum
// alone waits for every addition.
constexpr int64_t kSquareRows = 8;
void sums_of_squares(const float* const* rows, int64_t n, double* sums);
void sums_of_squares(const BFloat16* const* rows, int64_t n, double* sums);

// The same bits as exact_cosine of backend/exact.h, for kDotRows rows against one: `unit` are the
// unit elements of that one, inverses the inverse norms of the others.
constexpr int64_t kDotRows = 4;
void unit_dots(const float* unit, const float* const* rows, const double* inverses, int64_t n,
               double* dots);

// Sum of (x - rounded)^2.
float squared_distance(const float* x, const BFloat16* rounded, int64_t n);

}  // namespace sluice::impl::cpu::selection
