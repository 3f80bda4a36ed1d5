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

// Sum of (x - rounded)^2.
float squared_distance(const float* x, const BFloat16* rounded, int64_t n);

}  // namespace sluice::cpu
