// What the kernels of mode `keys` on the tensor cores share: tiles of far and near keys, and what
// is done to scores.

#pragma once

#include "backend/cuda/attention/dense/tile.cuh"
#include "backend/cuda/attention/keys/rows.cuh"

namespace sluice::impl::cuda::keys {

using namespace dense;

// The tiles [begin, end) of kKeys keys that a block goes over, far ones before near ones.
template <int kKeys>
struct KeyTiles {
  SeenKeys seen;
  int64_t n_near, far_tiles, begin, end;

  __device__ __forceinline__ KeyTiles(const KeysView& view, const QueryTile& tile, int64_t kv_head,
                                      int64_t split)
      : seen(keys_of(view, tile, kv_head)) {
    n_near = seen.near_end > seen.near_begin ? seen.near_end - seen.near_begin : 0;
    far_tiles = (seen.n_far + kKeys - 1) / kKeys;
    const int64_t all_tiles = far_tiles + (n_near + kKeys - 1) / kKeys;
    begin = all_tiles * split / view.split.n;
    end = all_tiles * (split + 1) / view.split.n;
  }
  // Position of the first key of a near tile.
  __device__ __forceinline__ int64_t first_near(int64_t tile) const {
    return seen.near_begin + (tile - far_tiles) * kKeys;
  }
  // A row of a tile, or kNoRow.
  __device__ __forceinline__ int32_t row_of(int64_t tile, int key) const {
    const bool far = tile < far_tiles;
    const int64_t at = (far ? tile : tile - far_tiles) * kKeys + key;
    if (far) return at < seen.n_far ? seen.far_row(at) : kNoRow;
    return at < n_near ? seen.near_row(seen.near_begin + at) : kNoRow;
  }
  // What is added to the scores of a key of a far tile.
  __device__ __forceinline__ float bias_of(int64_t tile, unsigned key) const {
    const int64_t at = tile * kKeys + key;
    return at < seen.n_far ? seen.bias[at] : -INFINITY;
  }
};

template <int kN>
__device__ void add_bias(float (&scores)[kN][4], const float* bias) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] += bias[n * 8 + 2 * t + i % 2];
}

// first_key: position of the tile's first key.
template <int kN>
__device__ void mask_near(float (&scores)[kN][4], int64_t first_key, int64_t end, bool causal,
                          const int64_t (&positions)[2]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  int last[2];  // of the tile's keys that each half of the rows sees
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t seen = causal ? min(positions[half], end - 1) : end - 1;
    last[half] = static_cast<int>(max(min(seen - first_key, int64_t{8 * kN}), int64_t{-1}));
  }
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (n * 8 + 2 * t + i % 2 > last[i / 2]) scores[n][i] = -INFINITY;
}

}  // namespace sluice::impl::cuda::keys
