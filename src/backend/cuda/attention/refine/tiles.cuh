// Refined attention on Ampere: what a thread block has of an item in shared memory and in
// registers, and how its tiles are copied.

#pragma once

#include <algorithm>

#include "backend/cuda/attention/dense/tile.cuh"
#include "backend/cuda/attention/refine/work.cuh"

namespace sluice::impl::cuda::refine {

using namespace dense;

constexpr int kThreads = 32 * kItemWarps;
constexpr int kKeys = 64;  // of a tile
constexpr int kN = kKeys / 8, kPages = kKeys / kPage;

template <int kD>
struct TileSizes {
  // Wide queries would not leave enough registers for the sums: they are read again for every tile.
  static constexpr bool kQueriesStay = kD > 128;
  static constexpr int kStages = kD <= 128 ? 2 : 1;
  static constexpr int kTile = kKeys * kTileStride<kD>;  // numbers, of keys or of values
  static constexpr int kQueryTile = kItemRows * kTileStride<kD>;
  static constexpr int kBuffers = 2 * kStages * kTile;
  static constexpr int kBytes =
      2 * (kQueriesStay ? kBuffers + kQueryTile : std::max(kBuffers, kQueryTile));
};

// The queries of an item, as left operands of products.
template <int kD>
struct Queries {
  static constexpr bool kStay = TileSizes<kD>::kQueriesStay;
  const __nv_bfloat16* tile;
  uint32_t columns[kStay ? 1 : kD / 16][4];

  // Columns [16 k, 16 k + 16).
  __device__ void load(uint32_t (&to)[4], int k) const {
    if constexpr (kStay) {
      load_query<kD>(to, tile, k * 16);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = columns[k][i];
    }
  }
  __device__ void scores(float (&to)[kN][4], const __nv_bfloat16* keys) const {
#pragma unroll
    for (int n = 0; n < kN; ++n) to[n][0] = to[n][1] = to[n][2] = to[n][3] = 0;
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
      uint32_t query[4];
      load(query, k);
      add_scores<kD>(to, query, keys, 0, k * 16);
    }
  }
};

// Starts copying rows of (…, head_dim) to a tile. row_at(r) is where row r begins, or negative:
// zeros.
template <int kD, typename RowAt>
__device__ void copy_rows(__nv_bfloat16* tile, const std::byte* rows, int head_dim, int n_rows,
                          const RowAt& row_at) {
  constexpr int kChunks = kD / 8;
  const auto* from = reinterpret_cast<const __nv_bfloat16*>(rows);
#pragma unroll 1  // addresses take registers
  for (int i = static_cast<int>(threadIdx.x); i < n_rows * kChunks; i += kThreads) {
    const int row = i / kChunks, column = i % kChunks * 8;
    const int64_t at = row_at(row);
    const bool exists = at >= 0 && column < head_dim;
    copy_async(tile + row * kTileStride<kD> + column, exists ? from + at + column : from, exists);
  }
}

// Calls use(tile, stage) after bring(tile, stage), for tiles [0, n). All threads of the block.
template <int kStages, typename Bring, typename Use>
__device__ void for_tiles(int n, const Bring& bring, const Use& use) {
  if (n > 0) bring(0, 0);
  for (int tile = 0; tile < n; ++tile) {
    wait_copies<0>();
    __syncthreads();
    if (kStages > 1 && tile + 1 < n) bring(tile + 1, (tile + 1) % 2);
    use(tile, tile % kStages);
    if (kStages == 1) {
      __syncthreads();
      if (tile + 1 < n) bring(tile + 1, 0);
    }
  }
  __syncthreads();
}

}  // namespace sluice::impl::cuda::refine
