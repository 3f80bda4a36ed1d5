// Tiles of queries over keys that are packed once per head.

#pragma once

#include "backend/cpu/attention/common/tile.h"
#include "backend/cpu/primitives/int8_rows.h"
#include "core/threads.h"

namespace sluice::impl::cpu::attention {

// Packed keys and values that exist at one time; heads beyond that wait for the next round.
constexpr int64_t kPackedBytes = int64_t{64} << 20;

// Keys and values of one head, (n_keys, head_dim) each.
template <typename T>
struct HeadRows {
  int64_t head_dim;
  const T* keys;
  const T* values;
  const T* key(int64_t j) const { return keys + j * head_dim; }
  const T* value(int64_t j) const { return values + j * head_dim; }
};
// The same of int8 rows: their integers, which every dtype has exactly. Their scales are left to
// QueryTile::visit_scaled().
template <typename T>
class Int8HeadRows {
 public:
  Int8HeadRows(int64_t head_dim, const int8_t* keys, const int8_t* values)
      : keys_(keys), values_(values), key_(static_cast<size_t>(head_dim)), value_(key_) {}
  const T* key(int64_t j) { return expanded(keys_, j, key_); }
  const T* value(int64_t j) { return expanded(values_, j, value_); }

 private:
  static const T* expanded(const int8_t* from, int64_t j, std::vector<T>& to) {
    const auto n = static_cast<int64_t>(to.size());
    primitives::from_int8_row(from + j * n, 1, n, to.data());
    return to.data();
  }
  const int8_t *keys_, *values_;
  std::vector<T> key_, value_;
};

struct PackedArgs {
  ConstTensor queries;  // (n_batch * n_queries, n_heads, head_dim)
  int64_t n_batch, n_kv_heads, n_keys;
  float scale;
  float cap = 0;  // as QueryTile has it
  Tensor out;     // (n_batch * n_queries, n_heads, head_dim)
};

// rows_of(source) -> HeadRows<T> or Int8HeadRows<T> of key/value head source % n_kv_heads of
// sequence source / n_kv_heads. visit(tile, first, n, panels, source) takes the tile of queries
// [first, first + n) of a sequence over the blocks it sees. Both are called from several threads.
template <typename T, typename RowsOf, typename Visit>
void attend_packed(const PackedArgs& args, const TileShape& shape, const RowsOf& rows_of,
                   const Visit& visit) {
  const int64_t n_blocks = shape.blocks(args.n_keys);
  const int64_t head_bytes = n_blocks * (shape.key_bytes + shape.value_bytes);
  const int64_t n_sources = args.n_batch * args.n_kv_heads;
  const int64_t per_round = std::clamp<int64_t>(kPackedBytes / head_bytes, 1, n_sources);
  const int64_t n_queries = args.queries.rows() / args.n_batch;
  const int64_t group = args.queries.shape()[1] / args.n_kv_heads;
  const int64_t n_tiles = (n_queries + shape.block_queries - 1) / shape.block_queries;
  const int64_t size = element_bytes(shape.kernel.b_dtype);
  const Buffer packed = host_buffer(shape.kernel.b_dtype, {per_round, head_bytes / size});
  const auto panels_at = [&](int64_t slot) {
    std::byte* keys = packed.view().bytes() + slot * head_bytes;
    return Panels{keys, keys + n_blocks * shape.key_bytes};
  };
  for (int64_t first = 0; first < n_sources; first += per_round) {
    const int64_t n = std::min(per_round, n_sources - first);
    parallel_each(n * n_blocks, [&](int64_t i) {
      const int64_t slot = i / n_blocks, begin = i % n_blocks * shape.block_keys;
      auto rows = rows_of(first + slot);
      for (int64_t j = begin; j < std::min(begin + shape.block_keys, args.n_keys); ++j)
        put_row(shape, panels_at(slot), j, rows.key(j), rows.value(j));
    });
    // Long tiles first: under a causal mask the last queries see the most keys.
    parallel_each(n * group * n_tiles, [&](int64_t i) {
      const int64_t first_query = (n_tiles - 1 - i / (n * group)) * shape.block_queries;
      const int64_t n_rows = std::min(shape.block_queries, n_queries - first_query);
      const int64_t slot = i % (n * group) / group, source = first + slot;
      const int64_t head = source % args.n_kv_heads * group + i % group;
      const int64_t row = source / args.n_kv_heads * n_queries + first_query;
      thread_local TileScratch scratch;
      QueryTile tile(shape, args.scale, scratch, args.cap);
      tile.load(args.queries, row, n_rows, head);
      visit(tile, first_query, n_rows, panels_at(slot), source);
      tile.store(args.out, row, head);
    });
  }
}

}  // namespace sluice::impl::cpu::attention
