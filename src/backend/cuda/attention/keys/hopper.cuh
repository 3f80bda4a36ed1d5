// How scattered rows get to Hopper's tensor cores: a warpgroup of threads fetches the queries of a
// tile and, through the lists, the tiles of keys and values that they see, one tile of queries
// after another.

#pragma once

#include "backend/cuda/attention/keys/items.cuh"
#include "backend/cuda/attention/keys/share.cuh"

namespace sluice::impl::cuda::keys::hopper {

static_assert(kRows == kKeysTileRows);

// Stages of the pipeline. Loading scattered rows takes longer than processing a tile; stages of
// values are released last, so their copies have the least time.
template <int kD>
struct Stages {
  static constexpr int kKeys = kD <= 128 ? 3 : 2, kValues = 3;
  // The last tile of keys of an item that finds room before its queries do: they take the place of
  // those that the last tile before them meets.
  static constexpr int kBeforeQueries = kKeys - 2;
  static constexpr int kBytes = Sizes<kD>::bytes(kKeys + kValues);
  // Of a thread that copies, and of one that multiplies.
  static constexpr int kCopierRegisters = 88, kRegisters = 208;
};

template <int kD>
struct Shared {
  static constexpr int kKeyStages = Stages<kD>::kKeys, kValueStages = Stages<kD>::kValues;
  uint64_t queries_here[2], queries_used[2];  // halves of them
  uint64_t keys_here[kKeyStages], keys_used[kKeyStages];
  uint64_t values_here[kValueStages], values_used[kValueStages];
  Bases bases[kCopiers / 32];
  Item items[2][2];  // of a half, double-buffered
  int drawn[2];      // the next item's number, double-buffered
  float bias[kKeyStages][Sizes<kD>::kKeys];
};

__device__ inline void sync_copiers() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(kCopiers) : "memory");
}

// Arrivals that say that rows are here: every thread's, once its copies are complete, and every
// warp's, for what it has written itself.
constexpr int kArrivals = kCopiers + kCopiers / 32, kHalfArrivals = kArrivals / 2;
__device__ inline void announce_written(uint64_t* here) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(here);
}

// Each half of the copying warps brings the queries of one warpgroup, which has its own barriers:
// the one that is done first need not wait for the other.
template <int kD>
struct Queries {
  using Rows = RowShare<kD, kRows / 2, kCopiers / 64, kRows>;

  int half = uniform_warp() / (kCopiers / 64);

  // Where the row begins that this lane knows, or nullptr.
  __device__ const std::byte* row(const KeysView& view, const Group& group,
                                  const Item& item) const {
    const int row = Rows::row();
    return query_row(view, group, item, row < 0 ? row : half * (kRows / 2) + row);
  }
  // Says which item is the next, once the queries of the one before are used.
  __device__ void announce(Shared<kD>& shared, const Item& item, int n_done) const {
    wait_barrier(&shared.queries_used[half], static_cast<uint32_t>(n_done & 1) ^ 1);
    if (threadIdx.x % (kCopiers / 2) == 0) shared.items[half][n_done % 2] = item;
    announce_written(&shared.queries_here[half]);
  }
  __device__ void copy(unsigned char* panels, const std::byte* mine, int head_dim) const {
    Rows::copy(panels + half * (kRows / 2) * kRowBytes, mine,
               __ballot_sync(0xffffffffu, mine != nullptr), head_dim);
  }
  // To the cache of the device, 64 bytes at a time: they are waited for when there is room for
  // them.
  __device__ void fetch(const KeysView& view, const Group& group, const Item& item) const {
    const std::byte* mine = row(view, group, item);
    if (mine == nullptr) return;
#pragma unroll 1
    for (int byte = 0; byte < 2 * view.heads.head_dim; byte += 64)
      asm volatile("prefetch.global.L2 [%0];\n" ::"l"(mine + byte) : "memory");
  }
};

// The producer warpgroup. It does not wait for its copies: they arrive at the mbarriers when they
// are complete.
template <int kD>
__device__ void bring_tiles(const KeysView& view, unsigned char* memory, Shared<kD>& shared,
                            int32_t* n_drawn) {
  using S = Sizes<kD>;
  using Keys = RowShare<kD, S::kKeys>;
  const auto head_dim = static_cast<int>(view.heads.head_dim);
  unsigned char* key_tiles = memory + S::kQueryBytes;
  unsigned char* value_tiles = key_tiles + Stages<kD>::kKeys * S::kTileBytes;
  Bases& bases = shared.bases[threadIdx.x / 32];
  const Group group(view);
  const Queries<kD> queries;
  const int key = Keys::row(), end = n_items(view);
  PipelineState<Stages<kD>::kKeys> key_pipe;
  PipelineState<Stages<kD>::kValues> value_pipe;
  int n_done = 0, index = static_cast<int>(blockIdx.x);
  ListedItem next = item_at(view, index);
  KeyRow first = row_of<S::kKeys>(view, next, 0, key);  // of the next item
  for (; index < end; ++n_done) {
    const ListedItem item = next;
    const int far_tiles = item.far_tiles<S::kKeys>(), n_tiles = item.n_tiles<S::kKeys>();
    bases.find(view, item.kv_head);
    KeyRow ahead = first;  // lists are read a tile ahead
    const std::byte* value = nullptr;
    uint32_t exist = 0;
    int drawn = 0;
    // The stage of a tile's keys is released long before that of its values: keys are copied one
    // tile ahead.
    for (int tile = 0; tile <= n_tiles; ++tile) {
      const std::byte* last_value = value;
      const uint32_t last_exist = exist;
      if (tile < n_tiles) {
        const KeyRow row = ahead;
        const KeyAddress from = address_of(view, bases, row.row);
        value = from.value;
        exist = __ballot_sync(0xffffffffu, row.row != kNoRow);
        const auto [stage, parity] = key_pipe.take();
        wait_barrier(&shared.keys_used[stage], parity ^ 1);
        if (tile < far_tiles && key >= 0) shared.bias[stage][key] = row.bias;
        announce_written(&shared.keys_here[stage]);
        Keys::copy(key_tiles + stage * S::kTileBytes, from.key, exist, head_dim);
        arrive_when_copied(&shared.keys_here[stage]);
        if (tile + 1 < n_tiles) ahead = row_of<S::kKeys>(view, item, tile + 1, key);
      }
      if (tile > 0) {
        const auto [stage, parity] = value_pipe.take();
        wait_barrier(&shared.values_used[stage], parity ^ 1);
        Keys::copy(value_tiles + stage * S::kTileBytes, last_value, last_exist, head_dim);
        arrive_when_copied(&shared.values_here[stage]);
      }
      if (tile == Stages<kD>::kBeforeQueries) {
        const std::byte* query = queries.row(view, group, item);
        queries.announce(shared, item, n_done);
        queries.copy(memory, query, head_dim);
        arrive_when_copied(&shared.queries_here[queries.half]);
        if (threadIdx.x == 0) drawn = atomicAdd(n_drawn, 1);
      }
      // By now there is time to wait for memory.
      if (tile == min(2, n_tiles)) {
        if (threadIdx.x == 0) shared.drawn[n_done % 2] = drawn_item(view, drawn, n_drawn);
        sync_copiers();
        index = shared.drawn[n_done % 2];
        if (index < end) next = item_at(view, index);
      }
      if (tile == min(3, n_tiles) && index < end) {
        first = row_of<S::kKeys>(view, next, 0, key);
        queries.fetch(view, group, next);
      }
    }
  }
  // The end is an item of no queries, with a tile of keys of which nothing is looked at.
  commit_copies();
  wait_copies<0>();
  const auto [stage, parity] = key_pipe.take();
  wait_barrier(&shared.keys_used[stage], parity ^ 1);
  announce_written(&shared.keys_here[stage]);
  arrive(&shared.keys_here[stage]);
  queries.announce(shared, Item{}, n_done);
  arrive(&shared.queries_here[queries.half]);
}

}  // namespace sluice::impl::cuda::keys::hopper
