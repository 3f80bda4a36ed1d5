// SIMD kernels under the comparison of rows.

#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace sluice::cpu {

// Largest scaled product of each panel of columns, for every row: out[i * n_panels + p] = max over
// the panel's columns j of value(c[i * c_stride + j] * factors[j]) + mask[j], value being the
// identity or the magnitude. nr is a multiple of the vector length of the kernels' panels.
struct PanelMaximaArgs {
  const float* c;  // (n_rows, n_panels * nr)
  int64_t c_stride;
  int64_t n_rows, n_panels, nr;
  const float* factors;  // (n_panels * nr)
  const float* mask;     // (n_panels * nr) 0, or -infinity where a column does not count
  bool absolute;
  float* out;  // (n_rows, n_panels)
};
void panel_maxima(const PanelMaximaArgs& args);

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

}  // namespace sluice::cpu
