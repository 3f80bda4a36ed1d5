// Which of several representatives owns a token.

#pragma once

#include "backend/cuda/selection/common/exact.cuh"

namespace sluice::impl::cuda::selection {

// The nearest representative so far, among candidates seen one after the other.
struct Nearest {
  int64_t position = -1;
  double cosine = -INFINITY, error = INFINITY;  // 0 once it was summed in order
  bool is_column = false;
  int64_t index = -1;  // of the column, or of the token in its chunk
};

__device__ inline Pair pair_of(const ChunkView& view, int64_t t, const Nearest& of) {
  return of.is_column ? pair_with_column(view, t, of.index) : pair_with_token(view, t, of.index);
}

__device__ inline void make_ordered(const ChunkView& view, int64_t t, Nearest& of) {
  if (of.position < 0) return;
  if (of.error > 0) of.cosine = ordered_cosine(pair_of(view, t, of));
  of.error = 0;
}

__device__ inline void consider(const ChunkView& view, int64_t t, Nearest& best, Nearest next) {
  const Cosine quick = quick_cosine(pair_of(view, t, next));
  next.cosine = quick.value;
  next.error = quick.error;
  if (best.position >= 0 && fabs(next.cosine - best.cosine) <= next.error + best.error) {
    make_ordered(view, t, best);
    make_ordered(view, t, next);
  }
  if (next.cosine > best.cosine || (next.cosine == best.cosine && next.position < best.position))
    best = next;
}

}  // namespace sluice::impl::cuda::selection
