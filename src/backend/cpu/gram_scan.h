// Products of a block of rows with many columns, reduced to candidates while a tile is in cache:
// no more than a block of products ever exists.

#pragma once

#include "backend/cpu/gram_candidates.h"

namespace sluice::cpu {

// One kind of comparison.
struct GramQuery {
  size_t mask;           // which columns count
  bool absolute;         // compares magnitudes
  bool earlier = false;  // only columns before the row's position count
};

struct GramScan {
  const GemmKernel* kernel;
  int64_t d_model;
  const GramRows* rows;
  const GramColumns* columns;
  std::span<const GramQuery> queries;

  // Candidates of the threads other than the first; kept between calls for their memory.
  using Parts = std::vector<std::vector<GramCandidates>>;
  // Adds to candidates (rows, queries) what all columns have to say. Returns the pairs multiplied.
  int64_t run(std::span<GramCandidates> candidates, Parts& parts) const;

  // The same in two steps, for columns that come to count row by row: all products of rows with
  // columns of earlier positions, then one row at a time.
  int64_t multiply(std::vector<float>& products) const;
  void collect_row(const std::vector<float>& products, int64_t row,
                   std::span<GramCandidates> candidates) const;
};

}  // namespace sluice::cpu
