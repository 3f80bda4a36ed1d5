// Products of rows and columns reduced to the candidates that matter.

#pragma once

#include "backend/cpu/selection/gram/simd.h"
#include "backend/cpu/selection/gram/tiles.h"

namespace sluice::impl::cpu {

// Products of one row with a group of panels.
struct RowProducts {
  int64_t row;
  Panels panels;
  double rounding;  // the largest of the panels
  const float* c;   // (panels * nr)
};

double largest_rounding(const GramColumns& columns, Panels panels);

// Some panels in the eyes of one comparison.
MaximumArgs in_query(const GramScan& scan, const GramQuery& query, Panels panels, const float* c);

// Adds the columns that matter.
void collect(const GramScan& scan, const GramQuery& query, const RowProducts& products,
             GramCandidates& candidates);

// The same for all that a row asks; most rows have nothing that matters in a group of panels.
void reduce_row(const GramScan& scan, const RowProducts& products,
                std::span<GramCandidates> candidates);

}  // namespace sluice::impl::cpu
