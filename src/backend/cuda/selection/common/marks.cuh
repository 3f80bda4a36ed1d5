// What cascade-cover keeps in addition to its columns: which tokens are decided and which are
// representatives (CoverView::marks); how near a column is (CoverView::levels).

#pragma once

#include "backend/cuda/selection/common/cover_view.h"

namespace sluice::impl::cuda::selection {

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

// Whether the chunk's tokens are looked at in a basis.
__device__ inline bool in_basis(const BasisView& basis) {
  return basis.rank > 0 && basis.progress->used != 0;
}
// The error bound of levels. In a basis, the bound of the rests comes on top.
__device__ inline double level_slack(const CoverView& view) {
  return in_basis(view.basis) ? view.basis.error : view.chunk.slack;
}

// Cosines from the least that may be at the threshold to the largest, in 256 steps.
struct CosineLevels {
  float factor, offset;

  __device__ CosineLevels(double threshold, double slack) {
    const float least = __double2float_rd(threshold - slack);
    factor = 1 / (__double2float_ru(1 + slack) - least);
    offset = -least * factor;
  }
  // A byte each.
  __device__ uint32_t of(const float (&cosines)[4]) const {
    uint32_t level[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)  // in the lowest byte
      level[i] = __float_as_uint(fmaf(__saturatef(fmaf(cosines[i], factor, offset)), 255, 0x1p23f));
    return __byte_perm(__byte_perm(level[0], level[1], 0x0040),
                       __byte_perm(level[2], level[3], 0x0040), 0x5410);
  }
  // At least as many as are between cosines that differ by this.
  __device__ int steps(float difference) const {
    return 1 + static_cast<int>(difference * factor * 255);
  }
  // Whose level is lower by this has the smaller cosine, though both may err by the slack: so many
  // steps, one for either rounding and one for those of this mapping.
  __device__ int margin(double slack) const {
    return 3 + static_cast<int>(2 * slack * double{factor} * 255);
  }
};

}  // namespace sluice::impl::cuda::selection
