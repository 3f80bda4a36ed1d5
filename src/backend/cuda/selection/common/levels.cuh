// Which of the columns at a token's threshold may be the nearest, by their levels
// (CoverView::levels). A warp works on one token.

#pragma once

#include "backend/cuda/selection/common/pieces.cuh"

namespace sluice::impl::cuda::selection {

// The levels of a piece's 32 columns (CoverView::levels), four to a word.
struct PieceLevels {
  uint32_t words[8];

  __device__ PieceLevels(const CoverView& view, const Pieces& pieces, int i) {
    const int64_t piece = pieces.data - view.bits + i;
    const auto* from = reinterpret_cast<const uint4*>(view.levels + piece * kPieceColumns);
    const uint4 low = from[0], high = from[1];
    words[0] = low.x, words[1] = low.y, words[2] = low.z, words[3] = low.w;
    words[4] = high.x, words[5] = high.y, words[6] = high.z, words[7] = high.w;
  }
  // The largest of those that have a bit.
  __device__ int largest(uint32_t bits) const {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      // A byte for each of four bits.
      const uint32_t bytes = ((bits >> 4 * i & 15) * 0x00204081u & 0x01010101u) * 255;
      most = __vmaxu4(most, words[i] & bytes);
    }
    most = __vmaxu4(most, most >> 16);
    return static_cast<int>(max(most & 255, most >> 8 & 255));
  }
  // Bits of those that are at least this.
  __device__ uint32_t at_least(int level) const {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t bytes = __vcmpgeu4(words[i], static_cast<uint32_t>(level) * 0x01010101u);
      bits |= ((bytes & 0x01010101u) * 0x01020408u >> 24 & 15) << 4 * i;
    }
    return bits;
  }
};

// The largest level that one of a piece's contenders has in any case: levels of coordinates are of
// the largest cosine that they allow.
__device__ inline int least_level(const CoverView& view, const Pieces& pieces,
                                  const CosineLevels& levels, int64_t t, int i, uint32_t bits) {
  const BasisView& basis = view.basis;
  const bool again =
      basis.open[t / kItemRows * view.tiles + i / kPieces] > kMostOpenPairs;  // at full width
  const uint8_t* of_piece = view.levels + (pieces.data - view.bits + i) * kPieceColumns;
  int best = 0;
  for (; bits != 0; bits &= bits - 1) {
    const int bit = __ffs(static_cast<int>(bits)) - 1;
    const Column column = column_of(view, pieces, i, bit);
    const float rest =
        again ? 0.0f : (column.is_kept ? basis.column_rest : basis.rest)[column.index];
    best = max(best, of_piece[bit] - levels.steps(2 * rest * basis.rest[t]));
  }
  return best;
}

// Of contenders, which the pieces hold, leaves those that may be the nearest; how many these are.
__device__ inline int drop_far(const CoverView& view, const Pieces& pieces, int set, int64_t t) {
  const bool coordinates = in_basis(view.basis);
  const double slack = level_slack(view);
  const CosineLevels levels(view.chunk.thresholds[set], slack);
  int best = 0;
  pieces.any(0, [&](int i, const uint2& piece) {
    if (piece.x != 0)
      best = max(best, coordinates ? least_level(view, pieces, levels, t, i, piece.x)
                                   : PieceLevels(view, pieces, i).largest(piece.x));
    return false;
  });
  best = static_cast<int>(__reduce_max_sync(kAllLanes, static_cast<unsigned>(best)));
  const int least = max(0, best - levels.margin(slack));
  int n_left = 0;
  pieces.any(0, [&](int i, uint2 piece) {
    if (piece.x != 0) {
      piece.x &= PieceLevels(view, pieces, i).at_least(least);
      pieces.data[i] = piece;
    }
    n_left += __reduce_add_sync(kAllLanes, __popc(piece.x));
    return false;
  });
  return n_left;
}

}  // namespace sluice::impl::cuda::selection
