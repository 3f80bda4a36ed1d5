// Refined attention on the device: what the kernels share. docs/algorithm.md, section 7.
//
// The cache of a layer has the layout of a dense one, (n_kv_heads, capacity, head_dim), but the
// rows of a settled segment are permuted: the members of a cluster (a page of 16 rows) lie side by
// side, so that opening a cluster is one box copy. Rows from the border on are in order of
// position. Means and statistics of page p lie in row p of their own arrays. The first pages hold
// the sinks, unpermuted; they are always open and have no mean.
//
// A prefill pass runs
//   gather_recent   the near tokens of the pass, by position: what queries see from their border on
//   settle          clusters of the segments that the pass closes, into the cache
//   attend_*        per tile of queries: near keys and means give the normaliser, the estimates
//   give
//                   the list of opened pages, then one softmax over near, means and opened pages
// A decode step runs settle where its position closes a segment, and attend_one. No kernel waits
// for the host.

#pragma once

#include "backend/cuda/device.h"
#include "backend/refine.h"

namespace sluice::cuda::refine {

constexpr int kPage = 16;           // rows of a page; other sizes are refused on this device
constexpr int kMostSegment = 1024;  // rows that one thread block settles

struct CacheView {
  std::byte* keys;         // (n_kv_heads, capacity, head_dim) compute dtype
  std::byte* values;       // (n_kv_heads, capacity, head_dim)
  std::byte* mean_keys;    // (n_kv_heads, n_pages, head_dim) compute dtype
  std::byte* mean_values;  // (n_kv_heads, n_pages, head_dim)
  float2* stats;           // (n_kv_heads, n_pages): ClusterStats::spread and rho
  int64_t capacity;        // whole segments
  int64_t n_pages;         // capacity / kPage
};

// Tokens [first, first + n) of the sequence by position, those that queries of the pass may see as
// near: from the border of its first query to its last token.
struct RecentView {
  std::byte* keys;    // (n_kv_heads, n, head_dim) compute dtype
  std::byte* values;  // (n_kv_heads, n, head_dim)
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
  RefineRule rule;
  int64_t first_position, n_tokens;
  int64_t window, segment, sinks, tile;
  const HeadKind* kinds;  // (n_kv_heads)
  const float* deltas;    // (n_kv_heads), times tile_factor where tiles decide
  CacheView cache;
  RecentView recent;  // prefill only
  // (n_segments, n_heads): members of opened pages that queries of a segment of positions read.
  unsigned long long* opened;

  // Where the near keys of the query at t begin; tokens before it are settled.
  __host__ __device__ int64_t border(int64_t t) const {
    if (!causal) return (first_position + n_tokens) / segment * segment;
    return t <= window ? 0 : (t - window) / segment * segment;
  }
};

}  // namespace sluice::cuda::refine
