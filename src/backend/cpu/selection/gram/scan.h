// Products of a block of rows with many columns, reduced to candidates while a tile is in cache:
// no more than a block of products ever exists.

#pragma once

#include "backend/cpu/selection/gram/candidates.h"
#include "backend/cpu/selection/gram/subspace.h"

namespace sluice::impl::cpu::selection {

// One kind of comparison.
struct Query {
  size_t mask;           // which columns count
  bool absolute;         // compares magnitudes
  bool earlier = false;  // only columns before the row's position count
};

// Pairs of rows and columns.
struct Pairs {
  int64_t multiplied = 0;  // at full width
  int64_t dropped = 0;     // decided by their coordinates
};

struct Scan {
  const gemm::Kernel* kernel;
  int64_t d_model;
  const Rows* rows;
  const Columns* columns;
  std::span<const Query> queries;
  // Where there is one, with the coordinates of all rows and columns: only what these leave open
  // is multiplied at full width.
  const Subspace* subspace = nullptr;

  // Candidates of the threads other than the first; kept between calls for their memory.
  using Parts = std::vector<std::vector<Candidates>>;
  // Adds to candidates (rows, queries) what all columns have to say.
  Pairs run(std::span<Candidates> candidates, Parts& parts) const;
  // What run would do with those first rows and columns whose coordinates are there: a sample.
  // Candidates learn what is reached.
  Pairs try_subspace(std::span<Candidates> candidates) const;

  // The same in two steps, for columns that come to count row by row: all products of rows with
  // columns of earlier positions, then one row at a time.
  int64_t multiply(std::vector<float>& products) const;
  void collect_row(const std::vector<float>& products, int64_t row,
                   std::span<Candidates> candidates) const;
};

}  // namespace sluice::impl::cpu::selection
