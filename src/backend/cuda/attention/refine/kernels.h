// Refined attention on the device: what the kernels share. docs/algorithm.md, section 7.
//
// The cache of a layer has the layout of a dense one, (n_kv_heads, capacity, head_dim), but the
// rows of a settled segment are permuted: the members of a cluster (a page of 16 rows) lie side by
// side, so that opening a cluster is one box copy. Rows from the border on are in order of
// position, but for those of the open segment that are settled early: their places are kept. Means
// and statistics of page p lie in row p of their own arrays. The first pages hold the sinks,
// unpermuted; they are always open and have no mean.
//
// A prefill pass runs
//   gather_recent   the near tokens of the pass, by position: what queries see from their border
//   on.
//                   Where none of them is of an earlier pass they stay in place: store_recent
//   settle          clusters of the segments that the pass closes, into the cache
//   attend_*        per tile of queries: near keys and means give the normaliser, the estimates
//                   give the list of opened pages, then one softmax over near, means and opened
//                   pages
// A decode step runs settle_in_place where its position closes a segment or an early part of one,
// and attend_one. A pass whose queries decide for themselves runs in pieces that share a border, so
// that what is settled early serves it too. No kernel waits for the host.

#pragma once

#include "backend/cuda/runtime/dependent_launch.cuh"
#include "backend/refine.h"

namespace sluice::impl::cuda::refine {

constexpr int kPage = 16;           // rows of a page; other sizes are refused on this device
constexpr int kMostSegment = 1024;  // rows that one thread block settles
constexpr int kMostDims = 256;      // of a head

struct CacheView {
  std::byte* keys;         // (n_kv_heads, capacity, head_dim) compute dtype
  std::byte* values;       // (n_kv_heads, capacity, head_dim)
  std::byte* mean_keys;    // (n_kv_heads, n_pages, head_dim) compute dtype
  std::byte* mean_values;  // (n_kv_heads, n_pages, head_dim)
  uint4* spreads;          // (n_kv_heads, n_pages): ClusterStats::spreads, kSpreadGroups bf16
  float* rhos;             // (n_kv_heads, n_pages): ClusterStats::rho
  // (n_kv_heads, head_dim + kSpreadGroups + 1): DimGroups::dims, then begins.
  uint16_t* dims;
  int64_t capacity;  // whole segments
  int64_t n_pages;   // capacity / kPage
  // Positions of the open segment that are settled early. places (n_kv_heads, segment): the row of
  // position early_begin + i is early_begin + places[i].
  int64_t early_begin, early_end;
  uint16_t* places;

  // The row of a position that is not before early_begin.
  __device__ int64_t row(int64_t head, int64_t position, int64_t segment) const {
    const int64_t at = position - early_begin;
    return head * capacity +
           (position < early_end ? early_begin + places[head * segment + at] : position);
  }
};

// Tokens [first, first + n) of the sequence by position, those that queries of the pass may see as
// near: from the border of its first query to its last token. All tokens where the model is not
// causal. They lie where they were gathered, or where the pass has them. Strides are in elements.
struct RecentView {
  const std::byte* keys;    // (n_kv_heads, n, head_dim) compute dtype
  const std::byte* values;  // (n_kv_heads, n, head_dim)
  int64_t head_stride, key_stride, value_stride;
  int64_t first, n;
};

// One call as kernels take it.
struct RefineView {
  const std::byte* queries;          // (n_tokens, n_heads, head_dim)
  std::byte* out;                    // (n_tokens, n_heads, head_dim)
  int64_t query_stride, out_stride;  // of tokens, in elements
  int64_t n_heads, n_kv_heads, head_dim;
  float scale;
  bool causal;
  int64_t first_position, n_tokens;
  int64_t window, segment, sinks, tile;
  int64_t border_step;    // by which borders move: segment, or RefineSpec::early
  const HeadKind* kinds;  // (n_kv_heads)
  const float* deltas;    // (n_kv_heads), times tile_factor where tiles decide
  CacheView cache;
  RecentView recent;  // prefill only
  // (n_segments, n_heads): members of opened pages that queries of a segment of positions read.
  // nullptr: not counted, by attend_one alone.
  unsigned long long* opened;

  // Where the near keys of the query at t begin; tokens before it are settled.
  __host__ __device__ int64_t border(int64_t t) const {
    if (!causal) return (first_position + n_tokens) / segment * segment;
    return t < window + segment ? 0 : (t - window) / border_step * border_step;
  }
  // Where tokens begin that stay in order of position after this pass.
  __host__ __device__ int64_t last_border() const { return border(first_position + n_tokens - 1); }
};

// The keys and values of a pass. Strides of tokens are in elements.
struct PassRows {
  const std::byte* keys;    // (n_tokens, n_kv_heads, head_dim)
  const std::byte* values;  // (n_tokens, n_kv_heads, head_dim)
  int64_t key_stride, value_stride;
};
// Copies the tokens of view.recent (first and n alone are read) from the cache's rows
// [recent.first, first_position) and the pass to `keys` and `values` (n_kv_heads, n, head_dim).
// Stores the pass's rows from last_border() on in the cache, by position.
void gather_recent(Context& context, const RefineView& view, const PassRows& pass, std::byte* keys,
                   std::byte* values, DType dtype);
// Stores these rows alone.
void store_recent(Context& context, const RefineView& view, const PassRows& pass, DType dtype);

// Settles the tokens [begin, end), whole segments of view.recent: permuted rows, means and
// statistics go into the cache. The first ones of a sequence group its dimensions before.
void settle(const std::shared_ptr<Context>& context, const RefineView& view, DType dtype,
            int64_t begin, int64_t end);
// Settles tokens [begin, end) of the open segment, which lie in the cache and are permuted there,
// in parts of n_tokens: the whole segment, or early parts of it, whose places are kept.
void settle_in_place(const std::shared_ptr<Context>& context, const RefineView& view, DType dtype,
                     int64_t begin, int64_t end, int64_t n_tokens);

// Any head size and number of tokens, in f32 throughout.
void attend_plain(Context& context, const RefineView& view, DType dtype);
// bf16 on tensor cores; head_dim a multiple of 8 up to 256, rows aligned to 16 bytes.
void attend_tiles(const std::shared_ptr<Context>& context, const RefineView& view);
// The same on compute capability 9.0.
void attend_hopper(const std::shared_ptr<Context>& context, const RefineView& view);
// One query. Stores the token's key and value (n_kv_heads, head_dim) at its position in the cache;
// what lies before its border is settled. Recordable: its position is
// first_position_of(view.first_position).
void attend_one(const std::shared_ptr<Context>& context, const RefineView& view, DType dtype,
                const std::byte* keys, const std::byte* values);

}  // namespace sluice::impl::cuda::refine
