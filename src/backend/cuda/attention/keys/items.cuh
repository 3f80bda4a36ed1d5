// What blocks of attention of mode `keys` on Hopper work on, one item after another.

#pragma once

#include "backend/cuda/attention/keys/rows.cuh"

namespace sluice::impl::cuda::keys::hopper {

// A tile of queries of one key head, and the keys it sees.
struct Item {
  int row, n;  // tokens of the pass; n is 0 where there is no more to do
  int kv_head;
  int n_far, near_begin, near_end;

  // Tiles of keys: far ones, then near ones.
  template <int kKeys>
  __device__ int far_tiles() const {
    return (n_far + kKeys - 1) / kKeys;
  }
  template <int kKeys>
  __device__ int n_tiles() const {
    return far_tiles<kKeys>() + (max(near_end - near_begin, 0) + kKeys - 1) / kKeys;
  }
};
struct ListedItem : Item {
  int64_t list;  // where the rows of far keys, and their biases, begin
};

// The query heads of a key head. Row r of an item's queries is that of token r / n and of query
// head r % n: whoever divides often keeps 2^16 / n, rounded up.
struct Group {
  int n;
  uint32_t inverse;

  __device__ explicit Group(const KeysView& view)
      : n(static_cast<int>(view.heads.group())), inverse(inverse_of(n)) {}
  __host__ __device__ static constexpr uint32_t inverse_of(int n) {
    return (0x10000u + static_cast<uint32_t>(n) - 1) / static_cast<uint32_t>(n);
  }
  __host__ __device__ static constexpr int quotient(int r, uint32_t inverse) {
    return static_cast<int>(static_cast<uint32_t>(r) * inverse >> 16);
  }
  __device__ int token(int r) const { return quotient(r, inverse); }
  // Where the numbers of row r begin, in rows of so many elements.
  __device__ int64_t at(const Item& item, int r, int64_t stride, int64_t head_dim) const {
    const int of_item = token(r);
    return (item.row + of_item) * stride + (item.kv_head * n + r - of_item * n) * head_dim;
  }
};
constexpr bool divides_exactly() {
  for (int n = 1; n <= kKeysTileRows; ++n)
    for (int r = 0; r < kKeysTileRows; ++r)
      if (Group::quotient(r, Group::inverse_of(n)) != r / n) return false;
  return true;
}
static_assert(divides_exactly());

// Items are in the order in which blocks take them up: late queries of some heads, which see most
// keys, go before early ones, so that the last of them are short; of as few heads at a time as fill
// the device, so that their rows stay in the cache, but of twice as many at the end, where blocks
// wait for the last to be done.
__device__ inline int n_items(const KeysView& view) {
  return static_cast<int>(view.tiles.n * view.heads.n_kv_heads);
}
__device__ inline ListedItem item_at(const KeysView& view, int index) {
  constexpr int kAtOnce = 256;
  const auto n_tiles = static_cast<int>(view.tiles.n);
  const auto n_heads = static_cast<int>(view.heads.n_kv_heads);
  const int some = min((kAtOnce + n_tiles - 1) / n_tiles, n_heads);
  const int last_heads = max((n_heads + some - 1) / some - 2, 0) * some;
  const int first_head = min(index / (some * n_tiles) * some, last_heads);
  const int here = first_head < last_heads ? some : n_heads - first_head;
  const int i = index - first_head * n_tiles;
  const int kv_head = first_head + i % here;
  const QueryTile tile = tile_at(view, n_tiles - 1 - i / here);
  const SeenKeys seen = keys_of(view, tile, kv_head);
  ListedItem item{{static_cast<int>(tile.row), static_cast<int>(tile.n), kv_head, 0, 0, 0}, 0};
  item.n_far = static_cast<int>(seen.n_far);
  item.near_begin = static_cast<int>(seen.near_begin);
  item.near_end = static_cast<int>(seen.near_end);
  if (seen.n_far > 0) item.list = seen.bias - view.far.bias;
  return item;
}
// The next item of a block that has begun one and has counted n_drawn up from `drawn`; its first is
// that of its own number.
__device__ inline int drawn_item(const KeysView& view, int drawn, int32_t* n_drawn) {
  if (drawn + 1 == n_items(view)) *n_drawn = 0;  // there are as many draws as items
  return static_cast<int>(gridDim.x) + drawn;
}

// A row of a tile of keys, and what is added to its scores.
struct KeyRow {
  int32_t row;
  float bias;
};
template <int kKeys>
__device__ KeyRow row_of(const KeysView& view, const ListedItem& item, int tile, int key) {
  const int far_tiles = item.far_tiles<kKeys>();
  KeyRow row{kNoRow, -INFINITY};
  if (tile < far_tiles) {
    const int at = tile * kKeys + key;
    if (key < 0 || at >= item.n_far) return row;
    row.row = view.far.rows != nullptr ? view.far.rows[item.list + at] : at;
    row.bias = view.far.bias[item.list + at];
  } else {
    const int at = item.near_begin + (tile - far_tiles) * kKeys + key;
    if (key < 0 || at >= item.near_end) return row;
    row.row = view.rows.near != nullptr ? view.rows.near[at] : row_of_token(at, true);
  }
  return row;
}

// Where row r of the queries of an item begins, or nullptr.
__device__ inline const std::byte* query_row(const KeysView& view, const Group& group,
                                             const Item& item, int r) {
  if (r < 0 || r >= item.n * group.n) return nullptr;
  return view.queries.data + 2 * group.at(item, r, view.queries.stride, view.heads.head_dim);
}

}  // namespace sluice::impl::cuda::keys::hopper
