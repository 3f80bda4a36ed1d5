// What attention of modes `copy` and `paper` asks of the device. docs/algorithm.md, section 3.
//
// Rows are the tokens that stand for themselves; key j is that of cluster j. A score gets
// log m_j(t), and m_j grows between the queries of a tile: every tile has the counts at its first
// query, and the few tokens behind that are counted in where their cluster's key comes by.
//
// For r rows of h heads of size D: 4 D h r^2 / 2 operations, and r^2 / kRepsTileRows counts.

#pragma once

#include "backend/attend.h"
#include "backend/cuda/device.h"

namespace sluice::cuda {

// Queries [row, row + n) of a pass, and where the tokens up to the first and the last of them end,
// counted from the pass's first token.
struct RepsTile {
  int64_t row, n;
  int64_t first_end, last_end;
};

struct RepsView {
  const std::byte* queries;
  const std::byte* keys;  // (n_kv_heads, capacity, head_dim), by cluster
  const std::byte* values;
  std::byte* out;
  int64_t query_stride, out_stride;
  int64_t n_heads, n_kv_heads, head_dim, capacity;
  float scale;
  bool causal, multiplicity;
  int64_t first_row, n_rows;  // clusters before this pass, and in it
  const RepsTile* tiles;
  int64_t n_tiles;
  const int32_t* cluster;  // (tokens of the pass)
  const int32_t* ends;     // (n_rows) tokens of the pass up to each query
  const int32_t* counts;   // (n_tiles, count_stride) at each tile's first query
  int64_t count_stride;
  int64_t n_splits;  // of a tile's keys; above 1, parts are put together after

  int64_t n_keys() const { return first_row + n_rows; }
};
constexpr int64_t kRepsTileRows = 128;  // queries times heads of a key head

// counts[i] of a tile = before + those among cluster[0, first_end of tile i); then `before` becomes
// the counts after all n tokens of the pass.
struct CountArgs {
  const int32_t* cluster;
  int64_t n, n_clusters;
  const int32_t* tile_of;  // (n) the first tile that counts each token, n_tiles where none does
  int64_t n_tiles;
  int32_t* counts;  // (n_tiles + 1, n_clusters)
  int32_t* before;  // (n_clusters)
};
void count_members(Context& context, const CountArgs& args);

// Plain and slow: f32, and heads of any size. Tiles of one query each.
void attend_reps_plain(Context& context, const RepsView& view, bool bf16);
// bf16 on the matrix units; head_dim a multiple of 8 up to 256, rows aligned to 16 bytes.
void attend_reps_tiles(const std::shared_ptr<Context>& context, const RepsView& view);

}  // namespace sluice::cuda
