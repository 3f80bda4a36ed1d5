// The largest cosines of a row, found as products come by.

#pragma once

#include "backend/cuda/selection/common/kernels.h"

namespace sluice::impl::cuda::selection {

__device__ inline Largest none_yet() { return {-INFINITY, -INFINITY, -INFINITY, -1, -1}; }

__device__ inline void insert(Largest& to, float cosine, int32_t column) {
  if (!(cosine > to.third)) return;  // nor where a column does not count
  if (cosine > to.first) {
    to.third = to.second;
    to.second = to.first;
    to.second_column = to.column;
    to.first = cosine;
    to.column = column;
  } else if (cosine > to.second) {
    to.third = to.second;
    to.second = cosine;
    to.second_column = column;
  } else {
    to.third = cosine;
  }
}

__device__ inline void merge(Largest& to, const Largest& other) {
  insert(to, other.first, other.column);
  insert(to, other.second, other.second_column);
  to.third = fmaxf(to.third, other.third);
}

// Of the four lanes that share a row.
__device__ inline void merge_lanes(Largest& x) {
  for (int step = 1; step < 4; step *= 2) {
    const Largest other = {
        __shfl_xor_sync(0xffffffffu, x.first, step), __shfl_xor_sync(0xffffffffu, x.second, step),
        __shfl_xor_sync(0xffffffffu, x.third, step), __shfl_xor_sync(0xffffffffu, x.column, step),
        __shfl_xor_sync(0xffffffffu, x.second_column, step)};
    merge(x, other);
  }
}

// What a row asks of the columns for one set: who might own it, or who decides it.
struct Question {
  bool asked = false, absolute = false;
  uint8_t mask = 0;
  float scale = 0;
};
__device__ inline Question question_of(const ChunkView& view, int set, bool decides, int64_t t) {
  if (t >= view.n || view.rows.exempt[t] != 0) return {};
  const bool inherited = view.is_inherited(set, t);
  if (!decides) return {true, false, kIsRep, view.rows.scale[t]};
  if (!view.rule.apart(inherited)) return {};
  return {true, view.rule.absolute, view.rule.deciding(inherited), view.rows.scale[t]};
}

// Whether any row asks this.
__device__ inline bool is_question(const ChunkView& view, int set, bool decides) {
  if (view.thresholds[set] <= 0) return false;
  return !decides || (!view.rule.fixed && (view.rule.apart(false) || view.rule.apart(true)));
}

}  // namespace sluice::impl::cuda::selection
