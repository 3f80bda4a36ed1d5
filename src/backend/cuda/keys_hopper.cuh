// How scattered rows get to Hopper's matrix units: a warpgroup of threads fetches the queries of a
// tile and, through the lists, the tiles of keys and values that they see, one tile of queries
// after another.

#pragma once

#include "backend/cuda/keys_rows.cuh"
#include "backend/cuda/wgmma.cuh"

namespace sluice::cuda::keys_hopper {

constexpr int kRows = kKeysTileRows;
constexpr int kThreads = 3 * 128;
constexpr int kCopiers = 128;   // threads
constexpr int kWarps = 8;       // that multiply
constexpr int kRowBytes = 128;  // of a panel: 64 numbers
constexpr int kEightRows = 8 * kRowBytes;

template <int kD>
struct Sizes {
  static constexpr int kPanels = kD / 64;
  static constexpr int kKeys = kD <= 128 ? 128 : 64;
  // Tiles of keys, and of values, at hand or on their way: scattered rows take longer to come than
  // a tile takes to be worked on.
  static constexpr int kStages = kD <= 128 ? 3 : 2;
  static constexpr int kQueryPanel = kRows * kRowBytes, kKeyPanel = kKeys * kRowBytes;  // bytes
  static constexpr int kQueryBytes = kPanels * kQueryPanel, kTileBytes = kPanels * kKeyPanel;
  // Sums are kept in parts as wide as one instruction.
  static constexpr int kParts = kD <= 128 ? 1 : 2;
  static constexpr int kPartPanels = kPanels / kParts;
  static constexpr int kBytes = kQueryBytes + 2 * kStages * kTileBytes + 1024;  // for alignment
};

// A tile of queries and the tiles of keys it sees: far ones, then near ones.
struct Work {
  QueryTile tile;
  int64_t kv_head, near_begin, near_end;
  int far_tiles, n_tiles;
};

template <int kD>
struct Shared {
  static constexpr int kStages = Sizes<kD>::kStages;
  uint64_t queries_here, queries_used;
  uint64_t keys_here[kStages], keys_used[kStages];
  uint64_t values_here[kStages], values_used[kStages];
  Work work[2];  // by turns
  float bias[kStages][Sizes<kD>::kKeys];
};

// Of the n-th use of stages that take turns: which one it is, and the parity of its barriers.
struct Turn {
  int stage;
  uint32_t parity;
};
template <int kStages>
__device__ Turn turn_of(int n) {
  return {n % kStages, static_cast<uint32_t>(n / kStages & 1)};
}

// A tile of queries of one key head. Late queries see most keys: they go first, so that the last
// ones are short.
struct Item {
  QueryTile tile;
  int64_t kv_head;
  SeenKeys seen;
};
__device__ inline int64_t n_items(const KeysView& view) { return view.n_tiles * view.n_kv_heads; }
__device__ inline Item item_at(const KeysView& view, int64_t index) {
  Item item;
  item.tile = tile_at(view, view.n_tiles - 1 - index % view.n_tiles);
  item.kv_head = index / view.n_tiles;
  item.seen = keys_of(view, item.tile, item.kv_head);
  return item;
}

template <int kKeys>
__device__ Work work_of(const Item& item) {
  const SeenKeys& seen = item.seen;
  const int64_t n_near = seen.near_end > seen.near_begin ? seen.near_end - seen.near_begin : 0;
  Work work{item.tile, item.kv_head, seen.near_begin, seen.near_end, 0, 0};
  work.far_tiles = static_cast<int>((seen.n_far + kKeys - 1) / kKeys);
  work.n_tiles = work.far_tiles + static_cast<int>((n_near + kKeys - 1) / kKeys);
  return work;
}

// A row of a tile of keys, and what is added to its scores.
struct KeyRow {
  int32_t row;
  float bias;
};
template <int kKeys>
__device__ KeyRow row_of(const Item& item, int tile, int key) {
  const SeenKeys& seen = item.seen;
  const auto far_tiles = static_cast<int>((seen.n_far + kKeys - 1) / kKeys);
  const bool far = tile < far_tiles;
  const int64_t at = int64_t{far ? tile : tile - far_tiles} * kKeys + key;
  if (key < 0 || at >= (far ? seen.n_far : seen.near_end - seen.near_begin))
    return {kNoRow, -INFINITY};
  if (!far) return {seen.near_row(seen.near_begin + at), 0};
  return {seen.far_row(at), seen.bias[at]};
}

// Where row r of the queries of an item begins, or nullptr.
__device__ inline const std::byte* query_row(const KeysView& view, const Item& item, int r) {
  const auto group = static_cast<int>(view.n_heads / view.n_kv_heads);
  if (r >= item.tile.n * group) return nullptr;
  return view.queries + 2 * ((item.tile.row + r / group) * view.query_stride +
                             (item.kv_head * group + r % group) * view.head_dim);
}

// How the copying warps share kCount rows of kD numbers: each lane knows where one of its warp's
// rows begins, and as many lanes as a row has 16-byte chunks copy it.
template <int kD, int kCount>
struct RowShare {
  static constexpr int kChunks = kD / 8, kAtOnce = 32 / kChunks;  // rows of a warp at a time
  static constexpr int kStep = kCopiers / 32 * kAtOnce;           // rows of all warps
  static constexpr int kPerWarp = kCount / (kCopiers / 32);
  static_assert(kPerWarp <= 32 && kCount % kStep == 0);

  // The row that this lane knows, or -1.
  static __device__ int row() {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    if (lane >= kPerWarp) return -1;
    return lane / kAtOnce * kStep + warp * kAtOnce + lane % kAtOnce;
  }

  // Starts copying them to panels; mine: where the row that this lane knows begins, or nullptr.
  static __device__ void copy(unsigned char* panels, const std::byte* mine, int head_dim,
                              const std::byte* anything) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int chunk = lane % kChunks, of_step = lane / kChunks;
    const bool in_head = chunk * 8 < head_dim;
    unsigned char* panel = panels + chunk / 8 * (kCount * kRowBytes);
#pragma unroll 4
    for (int i = 0; i < kCount / kStep; ++i) {
      const auto from = __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(mine),
                                    i * kAtOnce + of_step);
      const int row = i * kStep + warp * kAtOnce + of_step;
      const bool exists = from != 0 && in_head;
      copy_async(panel + row * kRowBytes + ((chunk % 8) ^ (row % 8)) * 16,
                 exists ? reinterpret_cast<const std::byte*>(from) + 16 * chunk : anything, exists);
    }
  }
};

// The copying warpgroup. It goes on as soon as a copy is under way: barriers learn by themselves
// when it is complete. What threads write themselves they announce at once, by an arrival more.
template <int kD>
__device__ void bring_tiles(const KeysView& view, unsigned char* memory, Shared<kD>& shared) {
  using S = Sizes<kD>;
  using Keys = RowShare<kD, S::kKeys>;
  using Queries = RowShare<kD, kRows>;
  const auto head_dim = static_cast<int>(view.head_dim);
  unsigned char* tiles = memory + S::kQueryBytes;
  const int key = Keys::row();
  int n_keys = 0, n_values = 0, n_done = 0;
  Item next = item_at(view, blockIdx.x);
  KeyRow first = row_of<S::kKeys>(next, 0, key);  // of the next item
  for (int64_t index = blockIdx.x; index < n_items(view); index += gridDim.x, ++n_done) {
    const Item item = next;
    const Work work = work_of<S::kKeys>(item);
    const HeadRows keys = head_rows(view, false, item.kv_head, 2);
    const HeadRows values = head_rows(view, true, item.kv_head, 2);
    KeyRow row{kNoRow, 0}, ahead = first;  // lists are read a tile ahead
    // A stage of keys is free long before the values beside it: keys are brought a tile ahead.
    for (int tile = 0; tile <= work.n_tiles; ++tile) {
      const std::byte* value_row = values.far(row.row);
      if (tile < work.n_tiles) {
        const auto [stage, parity] = turn_of<S::kStages>(n_keys++);
        wait_barrier(&shared.keys_used[stage], parity ^ 1);
        row = ahead;
        if (tile < work.far_tiles && key >= 0) shared.bias[stage][key] = row.bias;
        Keys::copy(tiles + 2 * stage * S::kTileBytes, keys.far(row.row), head_dim, view.queries);
        arrive(&shared.keys_here[stage]);
        arrive_when_copied(&shared.keys_here[stage]);
        if (tile + 1 < work.n_tiles) ahead = row_of<S::kKeys>(item, tile + 1, key);
      }
      if (tile == 0) {
        wait_barrier(&shared.queries_used, static_cast<uint32_t>(n_done & 1) ^ 1);
        if (threadIdx.x == 0) shared.work[n_done % 2] = work;
        Queries::copy(memory, query_row(view, item, Queries::row()), head_dim, view.queries);
        arrive(&shared.queries_here);
        arrive_when_copied(&shared.queries_here);
      } else {
        const auto [stage, parity] = turn_of<S::kStages>(n_values++);
        wait_barrier(&shared.values_used[stage], parity ^ 1);
        Keys::copy(tiles + (2 * stage + 1) * S::kTileBytes, value_row, head_dim, view.queries);
        arrive_when_copied(&shared.values_here[stage]);
      }
      // By now there is time to wait for memory.
      if (index + gridDim.x < n_items(view)) {
        if (tile == min(2, work.n_tiles)) next = item_at(view, index + gridDim.x);
        if (tile == min(3, work.n_tiles)) first = row_of<S::kKeys>(next, 0, key);
      }
    }
  }
  commit_copies();
  wait_copies<0>();
}

}  // namespace sluice::cuda::keys_hopper
