// Marks beside listed tokens: who is decided, and who is a representative (CoverView::marks).

#pragma once

#include "backend/cuda/select_kernels.h"

namespace sluice::cuda {

__device__ inline int tiles_of(int n) { return (n + kHopperGramColumns - 1) / kHopperGramColumns; }

__device__ inline bool is_inherited(const ChunkView& view, int set, int64_t t) {
  return view.inherited[set * view.n + t] != 0;
}

// The marks of a set, while those of a list are decided.
__device__ inline unsigned long long* marks_of(const CoverView& view, int list, int set) {
  return view.marks + (int64_t{list} * view.chunk.n_sets + set) * view.mark_tiles * 8;
}

// Marks a token, number `at` of a list that begins with tile `first`, as decided.
__device__ inline void mark(unsigned long long* marks, int first, int at, bool is_rep) {
  constexpr int kColumns = kHopperGramColumns;
  const int within = at % kColumns, bit = within % 128 / 8 * 2 + within % 2;
  const int piece = (first + at / kColumns) * 4 + within % 8 / 2;
  atomicOr(marks + 2 * piece + within / 128,
           (uint64_t{1} << (32 + bit)) | (is_rep ? uint64_t{1} << bit : 0));
}

}  // namespace sluice::cuda
