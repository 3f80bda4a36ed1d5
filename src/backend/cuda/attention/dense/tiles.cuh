// Attention of tiles of 128 queries on the tensor cores, dense or of mode `keys`, 16 queries to a
// warp. Stages that such kernels share.

#pragma once

#include "backend/cuda/attention/dense/tile.cuh"

namespace sluice::impl::cuda::dense::query_tiles {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = 16 * kWarps;

template <int kD>
struct TileSizes {
  static constexpr int kKeys = kD <= 128 ? 64 : 32;
  // Wide queries would not leave enough registers for the sums: they are read again for every tile.
  static constexpr bool kQueriesStay = kD > 128;
  static constexpr int kTile = kKeys * kTileStride<kD>;  // numbers, of keys or of values
  static constexpr int kQueryTile = kRows * kTileStride<kD>;
};

// Shared memory for so many tiles of keys and of values, loaded or in flight.
template <int kD, int kTiles>
struct Sizes : TileSizes<kD> {
  using T = TileSizes<kD>;
  static constexpr int kStages = kTiles;
  static constexpr int kBuffers = 2 * kStages * T::kTile;
  static constexpr int kQueriesAt = T::kQueriesStay ? kBuffers : 0;  // where their tile begins
  static constexpr int kNumbers =
      kQueriesAt + T::kQueryTile > kBuffers ? kQueriesAt + T::kQueryTile : kBuffers;
};

// A warp's 16 queries as the left operand.
template <int kD>
struct QueryOperand {
  static constexpr bool kStay = TileSizes<kD>::kQueriesStay;
  uint32_t registers[kStay ? 1 : kD / 16][4];
  const __nv_bfloat16* tile;

  // From a tile in shared memory, whose copies are committed. Where queries do not stay in shared
  // memory, the tile is free after.
  __device__ __forceinline__ explicit QueryOperand(const __nv_bfloat16* query_tile)
      : tile(query_tile) {
    if constexpr (!kStay) {
      wait_copies<0>();
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kD / 16; ++k) load_query<kD>(registers[k], tile, k * 16);
      __syncthreads();
    }
  }
  // scores += queries times a tile of keys.
  template <int kN>
  __device__ __forceinline__ void add_to(float (&scores)[kN][4], const __nv_bfloat16* keys) const {
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
      if constexpr (kStay) {
        uint32_t again[4];
        load_query<kD>(again, tile, k * 16);
        add_scores<kD>(scores, again, keys, 0, k * 16);
      } else {
        add_scores<kD>(scores, registers[k], keys, 0, k * 16);
      }
    }
  }
};

// A tile of keys, behind which its values lie: scores, of which finish(scores) hides or shifts
// some, a step of the softmax, and the weighted sums. factor: scale * log2(e).
template <int kD, typename Finish>
__device__ __forceinline__ void attend_tile(Softmax& softmax, float (&sums)[kD / 8][4],
                                            const QueryOperand<kD>& query,
                                            const __nv_bfloat16* tile, float factor,
                                            const Finish& finish) {
  using S = TileSizes<kD>;
  float scores[S::kKeys / 8][4] = {}, kept[2];
  query.add_to(scores, tile);
  finish(scores);
  take_scores(softmax, scores, factor, kept);
  scale_sums(sums, kept);
  add_values<kD>(sums, scores, tile + S::kTile, 0);
}

}  // namespace sluice::impl::cuda::dense::query_tiles
