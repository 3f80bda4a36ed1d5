// What attention of modes `copy` and `paper` asks of the device, in addition to
// kernels of mode `keys`. docs/algorithm.md, section 3.
//
// Rows are the tokens that stand for themselves; key j is that of cluster j. A score gets
// log m_j(t), and m_j grows between the queries of a tile. A weight is a sum over members, computed
// in one of two forms:
//
// By near keys, as mode `keys` has them: members up to the tile's first query count at once, as far
// keys with the log of their number; every token behind it, up to the tile's last query, is a near
// key of its own, the row of its cluster. For r rows among T tokens, h heads of size D: 4 D h
// r (r / 2 + n) operations, n being the tokens that the queries of a tile span, and
// r^2 / kKeysTileRows logs, some tiles' at a time.
//
// By counts, on Hopper: attention among the rows alone, whose weights are multiplied by m_j(t).
// That is the members before the tile's first query, a number to a tile and key, and those since, a
// byte to a query and key. 2 D h r^2 operations and r^2 / 2 bytes, which all heads share.

#pragma once

#include "backend/cuda/attention/dense/dense.h"
#include "backend/cuda/attention/keys/kernels.h"

namespace sluice::impl::cuda::copy {

constexpr int64_t kRepsTileRows = 128;  // queries of a tile
// A byte in the last place of this number's bits is added to it; counts before are less by it.
constexpr float kByteBase = 1 << 23;

// bias of a tile = log of (before + the tokens in front of its border), over scale, or without
// scale that count less kByteBase; then `before` becomes the counts after all n tokens.
struct CountArgs {
  const int32_t* cluster;  // (n)
  int64_t n, n_clusters;
  int64_t n_known;              // clusters that `before` has; others are new
  int64_t width;                // of a tile's biases, at least n_clusters: others count none
  int64_t first;                // position of the first token, as borders have it
  const keys::Border* borders;  // (n_tiles) ascending, none behind the last token
  int64_t n_tiles;
  float scale;      // or 0
  float* bias;      // (n_tiles, width)
  int32_t* before;  // (n_clusters)
};
void count_members(Context& context, const CountArgs& args);

// Members of a tile's span, from its first query up to each, none above 255.
struct SinceArgs {
  const int32_t* cluster;    // of the tokens of the pass
  const int32_t* positions;  // (n_rows) of queries among them, ascending
  int64_t n_rows, n_before;  // rows of the pass, and of those before it
  int64_t width;             // clusters, a multiple of 128
  int64_t first_tile, n_tiles;
  // (n_tiles, width / 32, 8 warps, 32 lanes): for four times eight clusters the bytes that a lane
  // multiplies scores by, in their order. Written as far as a query of the tile sees clusters.
  uint4* since;
};
void count_members_since(Context& context, const SinceArgs& args);

// Keys and values of a first pass that are to be stored: (n_rows, n_kv_heads, head_dim).
struct NewRows {
  const std::byte* keys;  // nullptr: all are stored
  const std::byte* values;
  int64_t key_stride, value_stride;  // of rows, in elements
};
// One call, on compute capability 9.0.
struct CountedView {
  dense::AttendView rows;  // its tokens are rows, of one sequence; causal
  NewRows fresh;
  int64_t first_tile, n_tiles, width;
  const float* before;  // (n_tiles, width)
  const uint4* since;
};
void attend_counted_hopper(Context& context, const CountedView& view);

// One pass that goes by counts.
struct CountedPass {
  dense::AttendView rows;
  NewRows fresh;
  std::span<const int32_t> cluster;    // of its tokens
  std::span<const int32_t> positions;  // of its rows among them
  int32_t* counts;                     // (n_clusters) those before the pass; then after it
};
// Whether every cluster gets as many members between the first and the last query of a tile as a
// byte holds.
bool bytes_suffice(std::span<const int32_t> cluster, std::span<const int32_t> positions,
                   int64_t n_clusters);
void attend_counted(const std::shared_ptr<Context>& context, const CountedPass& pass);

// One pass that goes by near keys.
struct NearPass {
  const RepsSpec& spec;
  const AttendRepsArgs& args;
  std::span<const int32_t> positions;  // of its rows among its tokens
  int64_t n_before;                    // rows of the passes before
  keys::ClusterRows rows;              // all of them
  int32_t* counts;                     // as above
};
void attend_near(const std::shared_ptr<Context>& context, const NearPass& pass);

}  // namespace sluice::impl::cuda::copy
