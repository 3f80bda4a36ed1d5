// Where the keys and values of one head are that attention of mode `keys` looks at.

#pragma once

#include "backend/cuda/attention/keys/kernels.h"

namespace sluice::impl::cuda::keys {

// The keys, or the values, of one key head.
struct HeadRows {
  const std::byte* clusters;  // rows of the cache
  const std::byte* means;     // running means
  const std::byte* old;       // tokens of earlier passes
  const std::byte* recent;    // tokens of this pass
  int64_t row_bytes, recent_bytes;
  int64_t base, first, first_mean;  // positions where old, recent and means begin

  __device__ const std::byte* token(int64_t position) const {
    return position >= first ? recent + (position - first) * recent_bytes
                             : old + (position - base) * row_bytes;
  }
  // row: of a list; nullptr for kNoRow.
  __device__ const std::byte* far(int32_t row) const {
    if (row >= 0) return clusters + row * row_bytes;
    if (row == kNoRow) return nullptr;
    const int64_t code = -1 - static_cast<int64_t>(row), position = code / 2;
    return code % 2 != 0 ? token(position) : means + (position - first_mean) * row_bytes;
  }
};

__device__ inline HeadRows token_rows(const TokenRows& tokens, bool values, int64_t kv_head,
                                      int64_t head_dim, int64_t element_bytes) {
  const int64_t row_bytes = head_dim * element_bytes;
  HeadRows rows{};
  rows.old = (values ? tokens.values : tokens.keys) + kv_head * tokens.capacity * row_bytes;
  rows.recent = (values ? tokens.new_values : tokens.new_keys) + kv_head * row_bytes;
  rows.row_bytes = row_bytes;
  rows.recent_bytes = (values ? tokens.new_value_stride : tokens.new_key_stride) * element_bytes;
  rows.base = tokens.base;
  rows.first = tokens.first;
  return rows;
}

__device__ inline HeadRows head_rows(const KeysView& view, bool values, int64_t kv_head,
                                     int64_t element_bytes) {
  HeadRows rows = token_rows(view.rows.tokens, values, kv_head, view.heads.head_dim, element_bytes);
  rows.clusters = (values ? view.rows.clusters.values : view.rows.clusters.keys) +
                  kv_head * view.rows.clusters.capacity * rows.row_bytes;
  rows.means = (values ? view.rows.mean_values : view.rows.mean_keys) +
               kv_head * view.rows.n_means * rows.row_bytes;
  rows.first_mean = view.rows.first_mean;
  return rows;
}

// The keys of one key head that a tile of queries sees.
struct SeenKeys {
  const int32_t* rows;  // (n_far), or nullptr: 0, 1, …
  const float* bias;
  const int32_t* near_rows;  // KeyRows::near
  int64_t n_far, near_begin, near_end;

  __device__ int32_t far_row(int64_t i) const {
    return rows != nullptr ? rows[i] : static_cast<int32_t>(i);
  }
  __device__ int32_t near_row(int64_t position) const {
    return near_rows != nullptr ? near_rows[position] : row_of_token(position, true);
  }
};

__device__ inline int64_t query_position(const KeysView& view, int64_t row) {
  return view.queries.positions != nullptr ? view.queries.positions[row]
                                           : view.queries.first_position + row;
}

__device__ inline void store_log_sum(const KeysView& view, int64_t row, int64_t head, float value) {
  if (view.queries.log_sums != nullptr)
    view.queries.log_sums[row * view.queries.log_sum_stride + head] = value;
}

__device__ inline QueryTile tile_at(const KeysView& view, int64_t index) {
  return view.tiles.all != nullptr ? view.tiles.all[index] : view.tiles.only;
}

__device__ inline SeenKeys keys_of(const KeysView& view, const QueryTile& tile, int64_t kv_head) {
  const HeadView head = view.heads.views != nullptr ? view.heads.views[kv_head] : HeadView{0, 0, 0};
  SeenKeys seen{};
  seen.near_rows = view.rows.near;
  if (head.list >= 0) {
    const int64_t offset = head.list * view.far.stride + view.far.borders[tile.list].offset;
    seen.rows = view.far.rows != nullptr ? view.far.rows + offset : nullptr;
    seen.bias = view.far.bias + offset;
    seen.n_far = view.far.n[head.list * view.far.n_borders + tile.list];
  }
  const int64_t n_keys = view.queries.first_position + view.queries.n_tokens;
  seen.near_begin = head.set < 0 ? 0 : tile.border;
  seen.near_end = view.heads.causal ? query_position(view, tile.row + tile.n - 1) + 1 : n_keys;
  return seen;
}

}  // namespace sluice::impl::cuda::keys
