// Products of rows and columns reduced to the candidates that matter.

#pragma once

#include "backend/cpu/selection/gram/simd.h"
#include "backend/cpu/selection/gram/tiles.h"

namespace sluice::impl::cpu::selection {

// Products of one row with a group of panels.
struct RowProducts {
  int64_t row;
  Panels panels;
  double rounding;  // the largest of the panels
  const float* c;   // (panels * nr)
};

double largest_rounding(const Columns& columns, Panels panels);

// Some panels in the eyes of one comparison.
MaximumArgs in_query(const Scan& scan, const Query& query, Panels panels, const float* c);

// Adds the columns that matter.
void collect(const Scan& scan, const Query& query, const RowProducts& products,
             Candidates& candidates);

// The same for all that a row asks; most rows have nothing that matters in a group of panels.
void reduce_row(const Scan& scan, const RowProducts& products, std::span<Candidates> candidates);

}  // namespace sluice::impl::cpu::selection
