// How the rows and counts of mode `copy` get to Hopper's tensor cores: one thread issues
// TMA copies of the queries of a tile and of the keys, counts and values that they see, one tile of
// queries after another.

#pragma once

#include "backend/cuda/attention/copy/kernels.h"
#include "backend/cuda/attention/dense/hopper_tile.cuh"

namespace sluice::impl::cuda::copy::hopper {

using namespace dense;
using namespace dense::hopper;
static_assert(kRows == kRepsTileRows);

constexpr int kStages = 2;  // of keys, of counts and of values
using StageState = PipelineState<kStages>;

// Tensors as TMA sees them: (…, rows, head_dim) in boxes of 64 columns.
struct Maps {
  CUtensorMap queries, keys, values;
  CUtensorMap to_keys, to_values;  // where they are to be stored
};

// A tile of queries of one head, and the tiles of keys that it sees.
struct Item {
  int tile, head;
  int n_tiles;  // 0 where there is no more to do
};

// Bytes of counts since the tile's first query, and of all that is in shared memory.
template <int kD>
constexpr int kSinceBytes = kRows* Sizes<kD>::kKeys;
template <int kD>
constexpr int kBytes = Sizes<kD>::bytes(2 * kStages) + kStages* kSinceBytes<kD>;

template <int kD>
struct Shared {
  uint64_t queries_here, queries_used;
  uint64_t keys_here[kStages], keys_used[kStages];
  uint64_t counts_here[kStages], counts_used[kStages];
  uint64_t values_here[kStages], values_used[kStages];
  Item items[2];  // double-buffered
  __align__(16) float before[kStages][Sizes<kD>::kKeys];
};

// Where the tiles are.
template <int kD>
struct Places {
  using S = Sizes<kD>;
  unsigned char* queries;

  __device__ unsigned char* keys(int stage) const {
    return queries + S::kQueryBytes + 2 * stage * S::kTileBytes;
  }
  __device__ unsigned char* values(int stage) const { return keys(stage) + S::kTileBytes; }
  __device__ unsigned char* since(int stage) const {
    return keys(kStages) + stage * kSinceBytes<kD>;
  }
};

__device__ inline int n_items(const CountedView& view) {
  return static_cast<int>(view.n_tiles * view.rows.n_heads);
}
// Items are in the order in which blocks take them up: late queries of some heads, which see most
// keys, go before early ones, so that the last of them are short; of as few heads at a time as fill
// the device, and as many each time, so that their rows stay in the cache.
template <int kKeys>
__device__ Item item_at(const CountedView& view, int index) {
  constexpr int kAtOnce = 256;
  const auto n_tiles = static_cast<int>(view.n_tiles),
             n_heads = static_cast<int>(view.rows.n_heads);
  const int times = max(min(n_items(view) / kAtOnce, n_heads), 1);
  const int some = (n_heads + times - 1) / times;
  const int first_head = index / (some * n_tiles) * some;
  const int here = min(some, n_heads - first_head), i = index - first_head * n_tiles;
  Item item{n_tiles - 1 - i / here, first_head + i % here, 0};
  const int end = min((static_cast<int>(view.first_tile) + item.tile + 1) * kRows,
                      static_cast<int>(view.rows.n_tokens));
  item.n_tiles = (static_cast<int>(view.rows.first_position) + end + kKeys - 1) / kKeys;
  return item;
}

// The thread that has TMA bring what the others need.
template <int kD>
__device__ void bring_tiles(const CountedView& view, const Maps& maps, const Places<kD>& places,
                            Shared<kD>& shared, int32_t* n_drawn) {
  using S = Sizes<kD>;
  const int group = static_cast<int>(view.rows.n_heads) / static_cast<int>(view.rows.n_kv_heads);
  const int end = n_items(view);
  const bool fresh = view.fresh.keys != nullptr;
  StageState pipe;
  int n_done = 0, index = static_cast<int>(blockIdx.x);
  for (; index < end; ++n_done) {
    const Item item = item_at<S::kKeys>(view, index);
    const int drawn = atomicAdd(n_drawn, 1);
    const int kv_head = item.head / group;
    const auto bring = [&](unsigned char* to, const CUtensorMap& map, int tile, uint64_t* here) {
      arrive_and_expect(here, S::kTileBytes);
      for (int panel = 0; panel < S::kPanels; ++panel)
        copy_box(to + panel * S::kKeyPanel, &map, 64 * panel, fresh ? kv_head : tile * S::kKeys,
                 fresh ? tile * S::kKeys : kv_head, here);
    };
#pragma unroll 1  // registers are few
    for (int tile = 0; tile < item.n_tiles; ++tile) {
      const auto [stage, parity] = pipe.take();
      wait_barrier(&shared.keys_used[stage], parity ^ 1);
      bring(places.keys(stage), maps.keys, tile, &shared.keys_here[stage]);
      if (tile == 0) {
        wait_barrier(&shared.queries_used, static_cast<uint32_t>(n_done & 1) ^ 1);
        shared.items[n_done % 2] = item;
        arrive_and_expect(&shared.queries_here, S::kQueryBytes);
        for (int panel = 0; panel < S::kPanels; ++panel)
          copy_box(places.queries + panel * S::kQueryPanel, &maps.queries, 64 * panel, item.head,
                   static_cast<int>(view.first_tile + item.tile) * kRows, &shared.queries_here);
      }
      const int64_t first = item.tile * view.width + tile * S::kKeys;  // of counts
      wait_barrier(&shared.counts_used[stage], parity ^ 1);
      arrive_and_expect(&shared.counts_here[stage],
                        kSinceBytes<kD> + static_cast<uint32_t>(sizeof(shared.before[stage])));
      copy_bytes(shared.before[stage], view.before + first, sizeof(shared.before[stage]),
                 &shared.counts_here[stage]);
      copy_bytes(places.since(stage), view.since + first * (kRows / 16), kSinceBytes<kD>,
                 &shared.counts_here[stage]);
      wait_barrier(&shared.values_used[stage], parity ^ 1);
      bring(places.values(stage), maps.values, tile, &shared.values_here[stage]);
    }
    if (drawn + 1 == end) *n_drawn = 0;  // there are as many draws as items
    index = static_cast<int>(gridDim.x) + drawn;
  }
  wait_barrier(&shared.queries_used, static_cast<uint32_t>(n_done & 1) ^ 1);
  shared.items[n_done % 2].n_tiles = 0;
  arrive(&shared.queries_here);
}

}  // namespace sluice::impl::cuda::copy::hopper
