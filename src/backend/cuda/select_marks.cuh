// What cascade-cover keeps beside its columns: who is decided, and who is a representative
// (CoverView::marks); how near a column is (CoverView::levels).

#pragma once

#include "backend/cuda/select_kernels.h"

namespace sluice::cuda {

constexpr int kPieces = 8;  // of a tile

__device__ inline int tiles_of(int64_t n) {
  return static_cast<int>((n + kHopperGramColumns - 1) / kHopperGramColumns);
}

// The marks of a set, while those of a list are decided.
__device__ inline unsigned long long* marks_of(const CoverView& view, int list, int set) {
  return view.marks + (int64_t{list} * view.chunk.n_sets + set) * view.mark_tiles * kPieces;
}

// Marks a token, number `at` of a list that begins with tile `first`, as decided.
__device__ inline void mark(unsigned long long* marks, int first, int at, bool is_rep) {
  constexpr int kColumns = kHopperGramColumns;
  const int within = at % kColumns, bit = within % 128 / 8 * 2 + within % 2;
  const int piece = (first + at / kColumns) * kPieces + within / 128 * 4 + within % 8 / 2;
  atomicOr(marks + piece, (uint64_t{1} << (32 + bit)) | (is_rep ? uint64_t{1} << bit : 0));
}

// Cosines from the least that may be at the threshold to the largest, in 256 steps.
struct CosineLevels {
  float factor, offset;

  __device__ CosineLevels(double threshold, double slack) {
    const float least = __double2float_rd(threshold - slack);
    factor = 1 / (__double2float_ru(1 + slack) - least);
    offset = -least * factor;
  }
  // In the lowest byte.
  __device__ uint32_t of(float cosine) const {
    return __float_as_uint(fmaf(__saturatef(fmaf(cosine, factor, offset)), 255, 0x1p23f));
  }
  // Whose level is lower by this has the smaller cosine, though both may err by the slack: so many
  // steps, one for either rounding and one for those of this mapping.
  __device__ int margin(double slack) const {
    return 3 + static_cast<int>(2 * slack * double{factor} * 255);
  }
};

}  // namespace sluice::cuda
