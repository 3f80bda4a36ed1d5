// One query's estimates of clusters, in SIMD: RefineEstimate of backend/refine.h on rows.

#pragma once

#include <array>
#include <vector>

#include "backend/refine.h"

namespace sluice::impl::cpu::refine {

// The spreads of clusters by group of dimensions, one row of clusters for each group.
using Spreads = std::array<std::vector<float>, kSpreadGroups>;
// A query's sums of squares by group of dimensions, scaled and rounded to bf16.
using Squares = std::array<float, kSpreadGroups>;
// query (head_dim).
Squares group_squares(const float* query, const DimGroups& dims, float scale);

struct AskArgs {
  RefineEstimate estimate;
  int64_t n;            // clusters
  const float* scores;  // (n) q . mean, not scaled
  const Spreads* spreads;
  const float* rhos;  // (n)
  const Squares* squares;
  float scale;  // of scores
  float near;   // log of the sum of exp over near scores; -inf: there are none
  float delta;
  float *masses, *errors;  // (n) scratch
  float* asks;             // (n) becomes 1 where the query asks to open a cluster, else stays
};
void ask(const AskArgs& args);

}  // namespace sluice::impl::cpu::refine
