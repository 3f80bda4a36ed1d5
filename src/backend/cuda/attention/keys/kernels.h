// What attention of mode `keys` asks of the device. docs/algorithm.md, section 3.
//
// A far cluster looks different from every border: its mean and count are those of its members
// before it. Instead of a snapshot per border there is one row per token, the running mean of its
// cluster up to itself, and per border the list of rows in force: the last member of each cluster
// before it, or, where a cluster has none since the last pass, its row in the cache. A query tile
// then streams its border's list and the near tokens through one softmax.
//
// For T tokens, h key heads of size D, r clusters at the end, border every B: running means read K
// and V and write as much, 4 T h D elements; lists have room for T^2 / (2 B) rows, of which
// T r / (2 B) are used; attention itself does 4 D (r / 2 + W + B / 2) operations per query and
// head, for dense attention's 4 D T / 2.

#pragma once

#include "backend/attend.h"
#include "backend/cuda/runtime/device.h"

namespace sluice::impl::cuda::keys {

// Keys and values of single tokens: those of earlier passes in the cache, (n_kv_heads, capacity,
// head_dim), those of this pass where it brought them, (n_tokens, n_kv_heads, head_dim).
struct TokenRows {
  const std::byte* keys;
  const std::byte* values;
  int64_t capacity;
  int64_t base;  // position of the token in place 0
  const std::byte* new_keys;
  const std::byte* new_values;
  int64_t new_key_stride, new_value_stride;  // of tokens, in elements
  int64_t first;                             // position of the pass's first token
};
// Means of clusters of tokens before a border: (n_kv_heads, capacity, head_dim).
struct ClusterRows {
  std::byte* keys;  // in the compute dtype
  std::byte* values;
  uint16_t* keys_rest;  // bf16: what rounding left of the means, else nullptr
  uint16_t* values_rest;
  int64_t capacity;
};

// Tokens [first, first + n) of one set, clusters side by side. Tokens are counted from first,
// places in that order: the members of a cluster stand together, by position, and which cluster is
// before which is anybody's guess. They fall into segments of kSegment, the last excepted.
struct MembersView {
  int64_t first, n, n_clusters;  // clusters are below n_clusters
  int32_t block;                 // borders are its multiples
  int32_t* order;                // (n) tokens, clusters side by side
  int32_t* clusters;             // (n) theirs
  int32_t* marked;               // (n) those tokens and what there is to know of them (MemberMark)
  int32_t* counts_there;         // (n) members of the cluster up to each place
  int32_t* counts;               // (n) the same by token
  int32_t* next;                 // (n) position of a token's next member, or INT32_MAX
  int32_t* own;                  // (n_clusters) the token that stands for itself, if it is here
  int32_t* first_new;            // (n_clusters) position of the first member, or INT32_MAX
  int32_t* begins;               // (n_clusters) its place
};
constexpr int64_t kSegment = 64;
enum MemberMark : int32_t {
  kSeen = 1,       // a border may fall between the token and its next member
  kBegins = 2,     // a segment
  kFirst = 4,      // of its cluster here
  kLast = 8,       // likewise
  kOwnFirst = 16,  // the cluster is new, and its first member is the token that stands for itself
  kOld = 32,       // the cluster has a row in the cache
};
constexpr int32_t kMarks = 64;  // a token counts so many

// How far clusters reach.
struct LinkExtent {
  int32_t largest;  // cluster that has members here
  int32_t longest;  // members of one
};
struct LinkArgs {
  const int32_t* cluster;  // (n)
  const uint8_t* status;   // (n)
  int64_t n_before;        // clusters in the cache
  const int32_t* counts_before;
  MembersView members;
  uint8_t* kept_status;  // (n) a copy of status
  LinkExtent* extent;    // is found; may be pinned host memory
};
// Links the members, puts them in their places and marks them.
void link_members(Context& context, const LinkArgs& args);

struct HeadView {
  int32_t set;   // -1: dense
  int32_t list;  // -1: none
  int32_t far;   // FarKey
};

struct MeansArgs {
  MembersView members;
  const int32_t* counts_before;
  ClusterRows before;
  int32_t set;
  int64_t n_kv_heads, head_dim;
  bool bf16;
  const HeadView* heads;
  TokenRows tokens;
  // Per token, (n_kv_heads, n, head_dim). Written where a border may fall between a token and its
  // next member, but for tokens that are all of their cluster so far and no more than that: they
  // are their own mean. What rounding left of a new cluster's last mean goes to the place of its
  // first member.
  std::byte* keys;
  std::byte* values;
  // Likewise, of clusters in the cache, at their last members; bf16 alone.
  std::byte* keys_rest;
  std::byte* values_rest;
  bool may_be_long;  // whether a cluster may have more than kSegment members here
};
void running_means(const std::shared_ptr<Context>& context, const MeansArgs& args);

// Clusters' rows become their last running means.
struct SettleArgs {
  MembersView members;
  const uint8_t* status;  // (n)
  int32_t set;
  int64_t n_kv_heads, head_dim;
  bool bf16;
  const HeadView* heads;
  const std::byte* keys;  // as running_means left them
  const std::byte* values;
  const std::byte* keys_rest;
  const std::byte* values_rest;
  int64_t n_before;  // clusters that have a row
  ClusterRows to;
  int32_t* counts;
  uint8_t* exempt;
};
void settle_clusters(Context& context, const SettleArgs& args);

// A row in force: that of a cluster in the cache, or, negative, a token's.
struct FarList {
  int32_t* rows;
  float* bias;  // log count / scale
};
constexpr int32_t kNoRow = INT32_MIN;
// `alone`: the token itself, else the running mean at it.
__host__ __device__ constexpr int32_t row_of_token(int64_t position, bool alone) {
  return static_cast<int32_t>(-1 - (2 * position + (alone ? 1 : 0)));
}

struct Border {
  int64_t position;
  int64_t offset;  // of its list
};
struct ListArgs {
  bool exempt_only;
  float scale;
  int64_t n_before;  // clusters in the cache
  const int32_t* counts_before;
  const uint8_t* exempt_before;
  MembersView members;    // of running means; none: n is 0
  const uint8_t* status;  // (members.n)
  const Border* borders;  // (n_borders)
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

// Queries and what is left of them.
struct QueryRows {
  const std::byte* data;
  std::byte* out;
  int64_t stride, out_stride;  // of rows, in elements
  float* log_sums;             // per row and query head, or nullptr
  int64_t log_sum_stride;
  int64_t first_position, n_tokens;
  const int32_t* positions;  // (rows) ascending; nullptr: from first_position on
};
struct KeyHeads {
  int64_t n_heads, n_kv_heads, head_dim;
  float scale;
  bool causal;
  const HeadView* views;  // (n_kv_heads); nullptr: all go by list 0

  // Query heads of a key head.
  __host__ __device__ int64_t group() const { return n_heads / n_kv_heads; }
};
struct QueryTiles {
  const QueryTile* all;  // (n); nullptr: `only` is all there is
  QueryTile only;
  int64_t n;
};
// Where near keys, and the rows that far lists name, are.
struct KeyRows {
  TokenRows tokens;
  ClusterRows clusters;
  const int32_t* near;         // the row in `clusters` of a near key; nullptr: the token's own
  const std::byte* mean_keys;  // running means, (n_kv_heads, n_means, head_dim)
  const std::byte* mean_values;
  int64_t first_mean, n_means;  // position of the first
};
// The rows in force at each border.
struct FarListsView {
  const int32_t* rows;  // (n_lists, stride); nullptr: 0, 1, …
  const float* bias;    // likewise
  int64_t stride;
  const Border* borders;  // (n_borders)
  const int32_t* n;       // (n_lists, n_borders) rows
  int64_t n_borders;
};
// How many blocks share the keys of a tile.
struct KeySplit {
  int64_t n_few;      // tokens of a pass that has few of them, up to kFewTokens; else 0
  int64_t most_keys;  // of a tile, where sharing them out is thought of; else 0
  int64_t n;          // above 1, parts are put together after
};

// One call as kernels take it. Mode `copy` by near keys is one too: far keys are the clusters up to
// a tile's first query, near ones those of the tokens behind it, each counting once
// (attention/copy/kernels.h).
struct KeysView {
  QueryRows queries;
  KeyHeads heads;
  QueryTiles tiles;
  KeyRows rows;
  FarListsView far;
  KeySplit split;
};
// What modes `keys` and `copy` say alike.
template <typename Spec, typename Args>
KeysView view_of_queries(const Spec& spec, const Args& args) {
  KeysView view{};
  view.queries.data = args.queries.bytes();
  view.queries.out = args.out.bytes();
  view.queries.stride = args.queries.row_stride();
  view.queries.out_stride = args.out.row_stride();
  view.heads.n_heads = spec.n_heads;
  view.heads.n_kv_heads = spec.n_kv_heads;
  view.heads.head_dim = spec.head_dim;
  view.heads.scale = spec.scale;
  view.heads.causal = spec.causal;
  return view;
}
constexpr int64_t kFewTokens = 16;
// Rows of a tile: tokens times query heads of a key head.
constexpr int64_t kKeysTileRows = 128;

// Runs the kernel that suits, which is no matter of what the tokens are. Answers of mode `keys` do
// not depend on later tokens, not even in their last bit; those of `copy` may in how a few tokens'
// sums are rounded. aligned: all rows suit the tensor cores.
void attend_keys(const std::shared_ptr<Context>& context, DType dtype, bool aligned, KeysView view);

// Plain and slow: f32, and heads of odd sizes.
void attend_keys_plain(Context& context, const KeysView& view, bool bf16);
// bf16 on the tensor cores; head_dim a multiple of 8 up to 256, rows aligned to 16 bytes.
void attend_keys_tiles(const std::shared_ptr<Context>& context, const KeysView& view);
// The same for few queries, one tile of them, and heads of up to kMostSplitDim: keys are split over
// blocks and over warps. For larger heads a tile of few rows is no slower.
constexpr int64_t kMostSplitDim = 128;
void attend_keys_split(const std::shared_ptr<Context>& context, KeysView view);
// The same on compute capability 9.0, for keys that are not split.
void attend_keys_hopper(Context& context, const KeysView& view);

}  // namespace sluice::impl::cuda::keys
