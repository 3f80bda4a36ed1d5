// Refined attention on Hopper: shared memory, barriers, and the warps that feed the consumers. One
// warp brings queries and keys by TMA, one brings values, one lists opened pages.
//
// Tiles of keys come in the order
//   near keys, means, means again, opened pages
// and tiles of values in the same order but for the first round of means. Exact pages lie behind
// the means, in the same tiles, or where there are no means behind the near keys.

#pragma once

#include "backend/cuda/attention/dense/hopper_tile.cuh"
#include "backend/cuda/attention/refine/decide.cuh"
#include "backend/cuda/attention/refine/list.cuh"

namespace sluice::impl::cuda::refine {

using namespace dense;

using hopper::kRowBytes;
using hopper::PipelineState;
static_assert(kItemRows == hopper::kRows && kItemWarps == hopper::kWarps);

template <int kD>
struct Sizes : hopper::Sizes<kD> {
  using Base = hopper::Sizes<kD>;
  static constexpr int kPages = Base::kKeys / kPage;  // of a tile of members
  static constexpr int kKeyStages = kD <= 128 ? 3 : 2, kValueStages = 2;
  static constexpr int kBytes = Base::bytes(kKeyStages + kValueStages);

  static __host__ __device__ constexpr int tiles_of(int n_keys) {
    return (n_keys + Base::kKeys - 1) / Base::kKeys;
  }
};

// Keys or values: (n_kv_heads, rows, head_dim) in boxes of 64 columns.
struct TileMaps {
  CUtensorMap near;        // boxes of a tile of rows
  CUtensorMap cache;       // of kPage rows
  CUtensorMap means;       // of a tile
  CUtensorMap last_means;  // the same tensor, of kPage rows
};
struct Maps {
  CUtensorMap queries;  // (n_tokens, n_heads, head_dim) in boxes of kItemRows tokens
  TileMaps keys, values;
};

template <int kD>
struct Shared {
  using S = Sizes<kD>;
  uint64_t item_here, item_used;  // with its queries
  uint64_t keys_here[S::kKeyStages], keys_used[S::kKeyStages];
  uint64_t values_here[S::kValueStages], values_used[S::kValueStages];
  uint64_t decided_here[2], decided_used[2];
  uint64_t listed;  // number of the item << 32 | listed pages << 1 | complete
  Item items[2];    // double-buffered: warps read one when the next is here already
  PageStats<S::kKeys> stats[S::kKeyStages];  // of a tile of means
  // Rows that open the pages of a tile of members.
  alignas(16) uint16_t members[S::kKeyStages][kItemWarps][S::kPages];
  alignas(16) uint16_t decided[2][kItemWarps][S::kKeys];  // the same of a tile of means
  uint32_t asked[2][kItemWarps][4];                       // of spread()
};

// What lanes have read or written themselves each of them hands on, so that every lane arrives.
// Tiles of values are written by TMA and read by tensor cores alone: one lane of a warp arrives
// (hopper::release).
template <int kD>
__device__ void make_barriers(Shared<kD>& shared) {
  using S = Sizes<kD>;
  make_barrier(&shared.item_here, 1);
  make_barrier(&shared.item_used, hopper::kLanes + 2 * 32);
  for (int stage = 0; stage < S::kKeyStages; ++stage) {
    make_barrier(&shared.keys_here[stage], 32);
    make_barrier(&shared.keys_used[stage], hopper::kLanes);
  }
  for (int stage = 0; stage < S::kValueStages; ++stage) {
    make_barrier(&shared.values_here[stage], 1);
    make_barrier(&shared.values_used[stage], kItemWarps);
  }
  for (int stage = 0; stage < 2; ++stage) {
    make_barrier(&shared.decided_here[stage], hopper::kLanes);
    make_barrier(&shared.decided_used[stage], 32);
  }
  shared.listed = ~uint64_t{0};  // of no item
  publish_barriers();
}

// Who has read a tile of keys and what came with it.
enum class ReadBy { kTensorCores, kLanes };
template <ReadBy kReader>
__device__ void release_keys(uint64_t* used) {
  if constexpr (kReader == ReadBy::kLanes) return arrive(used);
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(used, 32);
}

// Says how many pages of an item are listed; one lane, after all have written theirs. A release
// that meets an acquire: compute-sanitizer's racecheck follows barriers alone and reports the pair.
__device__ inline void publish_listed(uint64_t* listed, uint32_t number, int n, bool complete) {
  const uint64_t value =
      uint64_t{number} << 32 | static_cast<uint32_t>(n) << 1 | static_cast<uint32_t>(complete);
  asm volatile("st.release.cta.shared.u64 [%0], %1;\n" ::"r"(shared_address(listed)), "l"(value)
               : "memory");
}
// Waits until at least `needed` pages are listed or no more will be, and returns how many are.
__device__ inline int wait_listed(uint64_t* listed, uint32_t number, int needed) {
  uint64_t value;
  do {
    asm volatile("ld.acquire.cta.shared.u64 %0, [%1];\n"
                 : "=l"(value)
                 : "r"(shared_address(listed))
                 : "memory");
  } while (value >> 32 != number ||
           ((value & 1) == 0 && static_cast<uint32_t>(value) >> 1 < static_cast<uint32_t>(needed)));
  return __shfl_sync(0xffffffffu, static_cast<int>(static_cast<uint32_t>(value) >> 1), 0);
}

constexpr int kAbsentRow = 1 << 30;  // behind all rows of a cache

// Who writes a stage of keys: TMA alone, or lanes what comes with the tile too.
enum class WrittenBy { kTma, kLanes };

// The tiles of keys, or of values, as one warp brings them. kArrivals: of a stage's barrier.
template <int kD, int kStages, int kArrivals>
struct TileStream {
  using S = Sizes<kD>;
  const TileMaps& maps;
  unsigned char* tiles;
  uint64_t *here, *used;  // (kStages)
  PipelineState<kStages> pipe{};

  __device__ int next_stage() {
    const auto [stage, parity] = pipe.take();
    wait_barrier(&used[stage], parity ^ 1);
    return stage;
  }
  template <WrittenBy kWriter>
  __device__ void expect_tile(int stage) const {
    if (threadIdx.x % 32 == 0) {
      arrive_and_expect(&here[stage], S::kTileBytes);
      if (kWriter == WrittenBy::kTma && kArrivals > 1) arrive(&here[stage], kArrivals - 1);
    } else if (kWriter == WrittenBy::kLanes) {
      arrive(&here[stage]);
    }
  }
  // Rows [row, row + kKeys).
  template <WrittenBy kWriter = WrittenBy::kTma>
  __device__ void bring_rows(int stage, const CUtensorMap& map, int row, int kv_head) const {
    expect_tile<kWriter>(stage);
    if (threadIdx.x % 32 != 0) return;
#pragma unroll 1
    for (int panel = 0; panel < S::kPanels; ++panel)
      copy_box(tiles + stage * S::kTileBytes + panel * S::kKeyPanel, &map, 64 * panel, row, kv_head,
               &here[stage]);
  }
  // kPage rows from each of kPages places: lane i gives that of place i % kPages. Rows behind the
  // tensor are read as zeros.
  template <WrittenBy kWriter = WrittenBy::kTma>
  __device__ void bring_boxes(int stage, const CUtensorMap& map, int row, int kv_head) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    expect_tile<kWriter>(stage);
    __syncwarp();  // no box arrives before it is expected
    const int panel = lane / S::kPages;
    if (panel < S::kPanels)
      copy_box(tiles + stage * S::kTileBytes + panel * S::kKeyPanel +
                   lane % S::kPages * (kPage * kRowBytes),
               &map, 64 * panel, row, kv_head, &here[stage]);
  }
  // Pages [page, page + kPages) of the cache that are exact.
  __device__ void bring_exact(int stage, const Item& item, int page) const {
    const int mine = page + static_cast<int>(threadIdx.x) % S::kPages;
    bring_boxes(stage, maps.cache, mine < item.exact_pages ? mine * kPage : kAbsentRow,
                item.kv_head);
  }
  // Columns [column, column + kKeys) of means and of exact pages behind them.
  template <WrittenBy kWriter = WrittenBy::kTma>
  __device__ void bring_means(int stage, const Item& item, int column) const {
    if (column + S::kKeys <= item.sinks_at())
      return bring_rows<kWriter>(stage, maps.means, column, item.kv_head);
    const int row = column + static_cast<int>(threadIdx.x) % S::kPages * kPage;
    const int behind = row - item.sinks_at(), page = behind / kPage;
    bring_boxes<kWriter>(stage, behind < 0 ? maps.last_means : maps.cache,
                         behind < 0                ? row
                         : page < item.exact_pages ? page * kPage
                                                   : kAbsentRow,
                         item.kv_head);
  }
};

template <int kD>
__device__ void bring_keys(const RefineView& view, const Maps& maps, unsigned char* memory,
                           Shared<kD>& shared, const PageList& list, int32_t* n_drawn) {
  using S = Sizes<kD>;
  const int lane = static_cast<int>(threadIdx.x) % 32, slot = lane % S::kPages;
  const int end = n_items(view);
  TileStream<kD, S::kKeyStages, 32> stream{maps.keys, memory + S::kQueryBytes, shared.keys_here,
                                           shared.keys_used};
  int index = static_cast<int>(blockIdx.x);
  for (uint32_t number = 0;; ++number) {
    Item next{};
    next.head = -1;
    if (index < end) next = item_at(view, index);
    wait_barrier(&shared.item_used, (number & 1) ^ 1);
    Item& item = shared.items[number % 2];  // registers are few
    int drawn = 0;
    if (lane == 0) {
      item = next;
      arrive_and_expect(&shared.item_here, next.head < 0 ? 0 : S::kQueryBytes);
      for (int panel = 0; panel < S::kPanels && next.head >= 0; ++panel)
        copy_box(memory + panel * S::kQueryPanel, &maps.queries, 64 * panel, next.head,
                 next.begin - static_cast<int>(view.first_position), &shared.item_here);
    }
    __syncwarp();
    if (item.head < 0) return;
    if (lane == 0) {
      drawn = atomicAdd(n_drawn, 1);
      if (drawn + 1 == end) *n_drawn = 0;  // there are as many draws as items
    }

    const int first = item.near_begin - static_cast<int>(view.recent.first);
    for (int key = 0; key == 0 || key < item.near_end - item.near_begin; key += S::kKeys)
      stream.bring_rows(stream.next_stage(), maps.keys.near, first + key, item.kv_head);
    for (int page = 0; !item.has_means() && page < item.exact_pages; page += S::kPages)
      stream.bring_exact(stream.next_stage(), item, page);
    if (item.has_means()) {
#pragma unroll 1
      for (int round = 0; round < 2; ++round)
#pragma unroll 1
        for (int page = item.first_page; page < item.means_end(); page += S::kKeys) {
          const int stage = stream.next_stage();
#pragma unroll 2
          for (int i = lane; i < S::kKeys; i += 32)
            shared.stats[stage].load(view.cache, item.kv_head, i, page + i, item.end_page);
          stream.template bring_means<WrittenBy::kLanes>(stage, item, page);
        }
#pragma unroll 1
      for (int page = 0;; page += S::kPages) {
        const int n_listed = wait_listed(&shared.listed, number, page + S::kPages);
        if (page >= n_listed) break;
        const bool exists = page + slot < n_listed;
        const int row = exists ? list.pages[page + slot] * kPage : kAbsentRow;
        const uint4 rows = exists ? list.rows[page + slot] : make_uint4(0, 0, 0, 0);
        const int stage = stream.next_stage();
        if (lane < S::kPages) {
          const uint32_t words[4] = {rows.x, rows.y, rows.z, rows.w};
#pragma unroll
          for (int warp = 0; warp < kItemWarps; ++warp)
            shared.members[stage][warp][slot] =
                static_cast<uint16_t>(words[warp / 2] >> (warp % 2 * 16));
        }
        stream.template bring_boxes<WrittenBy::kLanes>(stage, maps.keys.cache, row, item.kv_head);
      }
    }
    index = static_cast<int>(gridDim.x) + __shfl_sync(0xffffffffu, drawn, 0);
  }
}

// The next item, for a warp that does not read its queries. It stays until the warp takes the next.
template <int kD>
__device__ const Item& take_item(Shared<kD>& shared, uint32_t number) {
  wait_barrier(&shared.item_here, number & 1);
  arrive(&shared.item_used);
  return shared.items[number % 2];
}

template <int kD>
__device__ void bring_values(const RefineView& view, const Maps& maps, unsigned char* memory,
                             Shared<kD>& shared, const PageList& list) {
  using S = Sizes<kD>;
  const int slot = static_cast<int>(threadIdx.x) % S::kPages;
  TileStream<kD, S::kValueStages, 1> stream{maps.values,
                                            memory + S::kQueryBytes + S::kKeyStages * S::kTileBytes,
                                            shared.values_here, shared.values_used};
  for (uint32_t number = 0;; ++number) {
    const Item& item = take_item(shared, number);
    if (item.head < 0) return;
    const int first = item.near_begin - static_cast<int>(view.recent.first);
    for (int key = 0; key == 0 || key < item.near_end - item.near_begin; key += S::kKeys)
      stream.bring_rows(stream.next_stage(), maps.values.near, first + key, item.kv_head);
    for (int page = 0; !item.has_means() && page < item.exact_pages; page += S::kPages)
      stream.bring_exact(stream.next_stage(), item, page);
    if (!item.has_means()) continue;
    for (int page = item.first_page; page < item.means_end(); page += S::kKeys)
      stream.bring_means(stream.next_stage(), item, page);
    for (int page = 0;; page += S::kPages) {
      const int n_listed = wait_listed(&shared.listed, number, page + S::kPages);
      if (page >= n_listed) break;
      const int row = page + slot < n_listed ? list.pages[page + slot] * kPage : kAbsentRow;
      stream.bring_boxes(stream.next_stage(), maps.values.cache, row, item.kv_head);
    }
  }
}

template <int kD>
__device__ void list_pages(Shared<kD>& shared, const PageList& list) {
  using S = Sizes<kD>;
  PipelineState<2> pipe;
  for (uint32_t number = 0;; ++number) {
    const Item& item = take_item(shared, number);
    if (item.head < 0) return;
    int n_listed = 0;
    for (int page = item.first_page; page < item.means_end(); page += S::kKeys) {
      const auto [stage, parity] = pipe.take();
      wait_barrier(&shared.decided_here[stage], parity);
      n_listed = append_pages(list, n_listed, shared.decided[stage], page);
      arrive(&shared.decided_used[stage]);
      __syncwarp();  // all have written their pages
      if (threadIdx.x % 32 == 0)
        publish_listed(&shared.listed, number, n_listed, page + S::kKeys >= item.means_end());
    }
  }
}

}  // namespace sluice::impl::cuda::refine
