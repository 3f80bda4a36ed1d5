// What products of cascade-cover are reduced to (CoverView::bits): which columns of a tile may be
// at a token's threshold, which are, and how near they are.

#pragma once

#include "backend/cuda/primitives/warp.cuh"
#include "backend/cuda/selection/common/marks.cuh"

namespace sluice::impl::cuda::selection::cover {

// Which bits of a word stand for columns before the limit; both count from the word's first column,
// in whose eight it has two.
__device__ inline uint32_t bits_before(int limit) {
  const int n = limit <= 0 ? 0 : min(32, limit / 8 * 2 + min(limit % 8, 2));
  return n == 32 ? ~0u : (1u << n) - 1;
}

// How near the columns of a piece are, those of a word's half of a tile. cosines(n): of columns
// 8 n + 2 t and 8 n + 2 t + 1.
template <typename Cosines>
__device__ __forceinline__ void put_levels(const CoverView& view, const CosineLevels& levels,
                                           int word, int64_t piece, const Cosines& cosines) {
  uint32_t packed[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 low = cosines(word * 16 + 2 * i), high = cosines(word * 16 + 2 * i + 1);
    packed[i] = levels.of({low.x, low.y, high.x, high.y});
  }
  auto* to = reinterpret_cast<uint4*>(view.levels + piece * kPieceColumns);
  to[0] = make_uint4(packed[0], packed[1], packed[2], packed[3]);
  to[1] = make_uint4(packed[4], packed[5], packed[6], packed[7]);
}

// A lane's bits of a tile, for rows g and g + 8 of its warp and both halves of the tile.
struct LaneBits {
  uint32_t may[2][2] = {}, must[2][2] = {};

  // Drops columns that are not before a row's token. limit: how many of the tile are.
  __device__ __forceinline__ void keep_before(const int (&limit)[2]) {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int word = 0; word < 2; ++word) {
        const uint32_t before = bits_before(limit[half] - 2 * t - 128 * word);
        may[half][word] &= before;
        must[half][word] &= before;
      }
  }
};

// Where they go: the number of the first row among those of all sets, and of the tile among those
// that have bits. Pieces without bits are written for rows that `replaces` names.
struct BitsPlace {
  int64_t row;
  int tile;
  bool replaces[2] = {false, false};
};

// Writes the bits of a tile, all lanes of a warp together. levels(): the CosineLevels of the set;
// cosines(half, n): as of put_levels.
template <typename Levels, typename Cosines>
__device__ __forceinline__ void put_bits(const CoverView& view, const BitsPlace& place,
                                         const LaneBits& bits, const Levels& levels,
                                         const Cosines& cosines) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = place.row + 8 * half;
    uint32_t some = 0;
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      const uint32_t may = bits.may[half][word];
      const uint32_t votes = __ballot_sync(kAllLanes, may != 0);
      some |= (votes >> (threadIdx.x % 32 - t) & 15) << 4 * word;
      if (may == 0 && !place.replaces[half]) continue;
      const int64_t piece = (row * view.tiles + place.tile) * kPieces + word * 4 + t;
      view.bits[piece] = make_uint2(may, bits.must[half][word]);
      if (may == 0) continue;
      put_levels(view, levels(), word, piece, [&](int n) { return cosines(half, n); });
    }
    if (t == 0 && some != 0)
      atomicOr(view.some + row * view.words + place.tile / 4, some << place.tile % 4 * kPieces);
  }
}

}  // namespace sluice::impl::cuda::selection::cover
