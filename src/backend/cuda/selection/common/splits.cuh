// What a chunk's products with kept columns were reduced to (DecisionScratch::largest), split by
// split. A warp works on one token.

#pragma once

#include "backend/cuda/selection/common/kernels.h"

namespace sluice::impl::cuda::selection {

__device__ inline const Largest& largest_of(const ChunkView& view, int set, int question, int split,
                                            int64_t t) {
  return view.scratch.largest[((int64_t{set} * 2 + question) * view.n_splits + split) * view.n + t];
}

// How many splits have columns; the others were not looked at.
__device__ inline int splits_with_columns(const ChunkView& view) {
  return min(view.n_splits, (*view.kept.n + view.tile_columns - 1) / view.tile_columns);
}

// Calls visit(split, largest) for the splits whose largest cosine is at least this, until it
// returns true.
template <typename Visit>
__device__ bool any_split(const ChunkView& view, int set, int question, int64_t t, double least,
                          const Visit& visit) {
  const int lane = static_cast<int>(threadIdx.x) % 32, n = splits_with_columns(view);
  for (int first = 0; first < n; first += 32) {
    const bool counts =
        first + lane < n && largest_of(view, set, question, first + lane, t).first >= least;
    for (uint32_t bits = __ballot_sync(0xffffffffu, counts); bits != 0; bits &= bits - 1) {
      const int split = first + __ffs(static_cast<int>(bits)) - 1;
      if (visit(split, largest_of(view, set, question, split, t))) return true;
    }
  }
  return false;
}

// Calls visit(column) for every column of a split that counts, until it returns true.
template <typename Visit>
__device__ bool any_column(const ChunkView& view, int set, uint8_t mask, int split,
                           const Visit& visit) {
  const int64_t n_columns = *view.kept.n;
  for (int64_t first = int64_t{split} * view.tile_columns; first < n_columns;
       first += int64_t{view.n_splits} * view.tile_columns)
    for (int64_t c = first; c < n_columns && c < first + view.tile_columns; ++c)
      if ((view.kept.flags[set * view.kept.capacity + c] & mask) != 0 && visit(c)) return true;
  return false;
}

}  // namespace sluice::impl::cuda::selection
