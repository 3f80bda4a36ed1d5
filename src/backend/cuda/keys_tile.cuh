// What the kernels of mode `keys` share: which keys a tile of queries sees, and what is done to
// their scores.

#pragma once

#include "backend/cuda/attend_tile.cuh"
#include "backend/cuda/keys_kernels.h"

namespace sluice::cuda {

// The keys of one key head that a tile of queries sees.
struct SeenKeys {
  const __nv_bfloat16 *cache_keys, *cache_values;  // clusters' rows
  const __nv_bfloat16 *mean_keys, *mean_values;    // running means
  const __nv_bfloat16 *near_keys, *near_values;    // from near_begin on
  const int32_t* rows;
  const float* bias;
  int64_t n_far, near_begin, near_end;
};

__device__ inline SeenKeys keys_of(const KeysView& view, const QueryTile& tile, int64_t kv_head) {
  const HeadView head = view.heads[kv_head];
  const auto rows_at = [&](const std::byte* rows, int64_t capacity) {
    return reinterpret_cast<const __nv_bfloat16*>(rows) + kv_head * capacity * view.head_dim;
  };
  SeenKeys seen{};
  seen.cache_keys = rows_at(view.before.keys, view.before.capacity);
  seen.cache_values = rows_at(view.before.values, view.before.capacity);
  seen.mean_keys = rows_at(view.mean_keys, view.n_means);
  seen.mean_values = rows_at(view.mean_values, view.n_means);
  if (head.list >= 0) {
    const int64_t offset = head.list * view.list_stride + view.offsets[tile.list];
    seen.rows = view.rows + offset;
    seen.bias = view.bias + offset;
    seen.n_far = view.n_far[head.list * view.n_borders + tile.list];
  }
  const int64_t n_keys = view.first_position + view.n_tokens;
  seen.near_begin = head.set < 0 ? 0 : tile.border;
  seen.near_end = view.causal ? view.first_position + tile.row + tile.n : n_keys;
  const int64_t place = (seen.near_begin - view.tokens.base) * view.head_dim;
  seen.near_keys = rows_at(view.tokens.keys, view.tokens.capacity) + place;
  seen.near_values = rows_at(view.tokens.values, view.tokens.capacity) + place;
  return seen;
}

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
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t key = first_key + n * 8 + 2 * t + i % 2;
      if (key >= end || (causal && key > positions[i / 2])) scores[n][i] = -INFINITY;
    }
}

}  // namespace sluice::cuda
