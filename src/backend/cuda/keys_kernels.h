// What attention of mode `keys` asks of the device. docs/algorithm.md, section 3.
//
// A far cluster looks different from every border: its mean and count are those of its members
// before it. Instead of a snapshot per border there is one row per token, the running mean of its
// cluster up to itself, and per border the list of rows in force: the last member of each cluster
// before it, or, where a cluster has none since the last pass, its row in the cache. A query tile
// then streams its border's list and the near tokens through one softmax.
//
// For T tokens, h key heads of size D, r clusters at the end, border every B: running means read K
// and V and write as much, 4 T h D elements; the lists are T r / (2 B) places; attention itself
// does 4 D (r / 2 + W + B / 2) operations per query and head, for dense attention's 4 D T / 2.

#pragma once

#include "backend/attend.h"
#include "backend/cuda/device.h"

namespace sluice::cuda {

// Exact tokens, and the clusters of those before a border: (n_kv_heads, capacity, head_dim).
struct TokenRows {
  std::byte* keys;
  std::byte* values;
  int64_t capacity;
  int64_t base;  // position of the token in place 0
};
struct ClusterRows {
  std::byte* keys;  // means in the compute dtype
  std::byte* values;
  uint16_t* keys_rest;  // bf16: what rounding left of the means, else nullptr
  uint16_t* values_rest;
  int64_t capacity;
};

// Tokens [first, first + n) of one set, by cluster and position.
struct MembersView {
  int64_t first, n;
  const int32_t* order;     // (n) tokens, counted from first
  const int32_t* clusters;  // (n) theirs
  const int32_t* own;       // per cluster: the token that stands for itself, counted from first
  const int32_t* counts_before;  // (n_before) members before first, per cluster
  int64_t n_before;
};

struct HeadView {
  int32_t set;   // -1: dense
  int32_t list;  // -1: none
  int32_t far;   // FarKey
};

struct MeansArgs {
  MembersView members;
  int32_t set;
  int64_t n_kv_heads, head_dim, block;
  bool bf16;
  const HeadView* heads;
  int32_t counting_head;  // any head of the set: it writes the counts
  TokenRows tokens;
  ClusterRows before;
  // Per token, (n_kv_heads, n, head_dim), where a border may fall between it and the next member;
  // or, at the last member, to the cluster's row.
  std::byte* keys;
  std::byte* values;
  bool settle;      // to `before`
  int32_t* counts;  // (n) members up to each token
};
void running_means(Context& context, const MeansArgs& args);

// Sorts the tokens of a range by cluster, and links them.
struct LinkArgs {
  const int32_t* cluster;        // (n) of the range
  const uint8_t* status;         // (n)
  int64_t first, n, n_clusters;  // clusters are below n_clusters
  int32_t* order;
  int32_t* clusters;
  int32_t* own;        // (n_clusters)
  int32_t* first_new;  // (n_clusters) position of the first member in the range, or INT32_MAX
  int32_t* next;       // (n) position of the next member, or INT32_MAX
};
void link_members(const std::shared_ptr<Context>& context, const LinkArgs& args);

// Counts of the clusters' rows after running_means settled.
void settle_counts(Context& context, const MembersView& members, const int32_t* counts,
                   const uint8_t* status, int32_t* cluster_counts, uint8_t* cluster_exempt);
// *most = the number of clusters among n tokens, at least what it was.
void count_clusters(Context& context, const int32_t* cluster, int64_t n, int32_t* most);

// A row in force: that of a cluster in the cache, or, as -1 - token, a running mean.
struct FarList {
  int32_t* rows;
  float* bias;  // log count / scale
};
struct ListArgs {
  bool exempt_only;
  float scale;
  int64_t n_before;  // rows in the cache
  const int32_t* counts_before;
  const uint8_t* exempt_before;
  const int32_t* first_new;  // nullptr when n is 0
  int64_t first, n;          // the range of running means
  const int32_t* next;
  const int32_t* counts;
  const uint8_t* status;
  const int64_t* borders;  // (n_borders)
  const int64_t* offsets;  // (n_borders) of each border's list
  int64_t n_borders;
  FarList list;
  int32_t* n_far;  // (n_borders)
};
void list_far_rows(Context& context, const ListArgs& args);

struct QueryTile {
  int64_t row, n;  // tokens of the pass
  int64_t border;  // where near keys begin
  int64_t list;    // index of the border
};

struct KeysView {
  const std::byte* queries;
  std::byte* out;
  int64_t query_stride, out_stride;
  int64_t n_heads, n_kv_heads, head_dim;
  float scale;
  bool causal;
  int64_t first_position, n_tokens;
  const QueryTile* tiles;
  int64_t n_tiles;
  const HeadView* heads;
  TokenRows tokens;
  ClusterRows before;
  const std::byte* mean_keys;  // running means, (n_kv_heads, n_means, head_dim)
  const std::byte* mean_values;
  int64_t n_means;
  const int32_t* rows;  // (n_lists, list_stride)
  const float* bias;
  int64_t list_stride;
  const int64_t* offsets;  // (n_borders)
  const int32_t* n_far;    // (n_lists, n_borders)
  int64_t n_borders;
  int64_t n_splits;  // of a tile's keys; above 1, parts are put together after
};
// Rows of a tile: tokens times query heads of a key head.
constexpr int64_t kKeysTileRows = 128;

// Plain and slow: f32, and heads of any size.
void attend_keys_plain(Context& context, const KeysView& view, bool bf16);
// bf16 on the matrix units; head_dim a multiple of 8 up to 256, rows aligned to 16 bytes.
void attend_keys_tiles(const std::shared_ptr<Context>& context, const KeysView& view);
// The same on compute capability 9.0, for keys that are not split.
void attend_keys_hopper(Context& context, const KeysView& view);

}  // namespace sluice::cuda
