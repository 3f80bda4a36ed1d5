// Refined attention: the work items of the prefill kernels. An item is 128 consecutive queries of
// one query head, aligned to positions of the sequence, so that a tile that decides together never
// lies in two items.

#pragma once

#include "backend/cuda/attention/refine/kernels.h"

namespace sluice::impl::cuda::refine {

constexpr int kItemRows = 128;  // queries of an item
constexpr int kItemWarps = 8;   // 16 rows each

// A tile that decides together is a part of an item. 16 queries are in one segment.
inline void check_tiles(const RefineView& view) {
  SLUICE_CHECK(view.tile >= 1 && kItemRows % view.tile == 0);
  SLUICE_CHECK((view.first_position + view.n_tokens) * view.n_heads <= INT32_MAX);
  SLUICE_CHECK(view.segment % kPage == 0 && view.sinks % kPage == 0 && view.sinks < view.segment);
}

struct Item {
  int head, kv_head;         // head -1: no more work
  int begin;                 // position of row 0
  int first, last;           // positions of its queries that are in the pass
  int near_begin, near_end;  // positions; rows may see less of them
  int exact_pages;           // first pages of the cache, which every row reads
  int first_page, end_page;  // pages that are read as means or opened; rows may see less of them
  float delta;
  bool dense;       // all keys are exact: near ones and exact pages are all there is
  bool one_border;  // near keys begin at near_begin for all rows

  __device__ bool has_means() const { return first_page < end_page; }
  // Exact pages fill up the last tile of means: its columns are numbered on from sinks_at(), at a
  // multiple of kPage from first_page, to means_end().
  __device__ int sinks_at() const {
    return first_page + (end_page - first_page + kPage - 1) / kPage * kPage;
  }
  __device__ int means_end() const { return sinks_at() + (has_means() ? exact_pages * kPage : 0); }
};

__host__ __device__ inline int n_items(const RefineView& view) {
  const int64_t last = view.first_position + view.n_tokens - 1;
  const int64_t tiles = last / kItemRows - view.first_position / kItemRows + 1;
  return static_cast<int>(tiles * view.n_heads);
}

// Late queries, which see most keys, come first, so that the last items are short. As few heads at
// a time as fill the device: their keys stay in the L2 cache.
__device__ inline Item item_at(const RefineView& view, int index) {
  constexpr int kAtOnce = 256;
  const auto n_heads = static_cast<int>(view.n_heads);
  const int tiles = n_items(view) / n_heads;
  const int some = min((kAtOnce + tiles - 1) / tiles, n_heads);
  const int first_head = index / (some * tiles) * some, here = min(some, n_heads - first_head);
  const int i = index - first_head * tiles;
  Item item;
  item.head = first_head + i % here;
  item.kv_head = item.head / static_cast<int>(view.n_heads / view.n_kv_heads);
  const auto end = static_cast<int>(view.first_position + view.n_tokens);
  const auto pass = static_cast<int>(view.first_position);
  item.begin = (pass / kItemRows + tiles - 1 - i / here) * kItemRows;
  item.first = max(item.begin, pass);
  item.last = min(item.begin + kItemRows, end) - 1;
  const HeadKind kind = view.kinds[item.kv_head];
  const auto least = static_cast<int>(view.border(item.first));
  const auto most = static_cast<int>(view.border(item.last));
  item.delta = view.deltas[item.kv_head];
  item.dense = kind == HeadKind::kDense;
  item.one_border = least == most;
  item.near_begin = least;
  item.near_end = view.causal ? item.last + 1 : end;
  const auto sinks = static_cast<int>(view.sinks);
  item.exact_pages = least == 0 ? 0 : (item.dense ? least : sinks) / kPage;
  item.first_page = sinks / kPage;
  item.end_page = kind == HeadKind::kClusters && most > 0 ? most / kPage : item.first_page;
  return item;
}

// What the two rows of a lane see: rows g = lane / 4 and g + 8 of a warp's 16.
struct LaneRows {
  int position[2];  // of rows that are not in the pass: the nearest one that is
  int border[2];    // where near keys begin, sinks excepted; 0 for dense heads
  bool in_pass[2];

  __device__ LaneRows(const RefineView& view, const Item& item, int warp) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = item.begin + warp * 16 + lane / 4 + 8 * half;
      position[half] = min(max(at, item.first), item.last);
      in_pass[half] = at == position[half];
      border[half] = item.dense        ? 0
                     : item.one_border ? item.near_begin
                                       : static_cast<int>(view.border(position[half]));
    }
  }
};

// Columns of a tile of scores that the rows of a lane see: those below `exempt`, and those of
// [begin, end).
struct Visible {
  int begin[2], end[2], exempt;
};

// The near keys from position first_key on. Rows that see the sinks apart from their other near
// keys lie behind all of them.
__device__ inline Visible visible_near(const RefineView& view, const Item& item,
                                       const LaneRows& rows, int first_key) {
  Visible visible;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    visible.begin[half] = rows.border[half] - first_key;
    visible.end[half] = (view.causal ? rows.position[half] + 1 : item.near_end) - first_key;
  }
  visible.exempt =
      min(static_cast<int>(view.sinks) - first_key, min(visible.end[0], visible.end[1]));
  return visible;
}

// Sets scores of columns that a row does not see to -inf.
template <int kN>
__device__ void mask_columns(float (&scores)[kN][4], const Visible& visible) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // Relative to the lane's first column: the others then differ from it by constants.
    const int begin = visible.begin[half] - 2 * t, end = visible.end[half] - 2 * t;
    const int exempt = visible.exempt - 2 * t;
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = n * 8 + i;
        if ((column < begin || column >= end) && column >= exempt)
          scores[n][2 * half + i] = -INFINITY;
      }
  }
}

}  // namespace sluice::impl::cuda::refine
