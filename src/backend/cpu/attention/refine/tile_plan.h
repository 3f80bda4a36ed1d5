// How the queries of a pass are taken: which decide together, and which pass over keys together.

#pragma once

#include "backend/cpu/attention/common/tile.h"
#include "backend/refine.h"

namespace sluice::impl::cpu::refine {

// A unit of queries passes over its keys together.
struct TilePlan {
  explicit TilePlan(const RefineSpec& spec);

  // Several decision tiles make a unit, and each hides what it did not open.
  bool mixed;
  int64_t unit;  // queries, a multiple of spec.tile
  // Gathered clusters of a mixed unit begin at multiples of this. Then a query's sums are the same
  // to the bit whatever other queries opened: what it hides is zero in whole vectors and in whole
  // steps of the kernel.
  int64_t cluster_align;
  int64_t region_segments;  // mixed: a gathered block never holds members of two regions
  attention::TileShape shape;
};

}  // namespace sluice::impl::cpu::refine
