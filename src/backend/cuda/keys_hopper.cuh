// How scattered rows get to Hopper's matrix units: a warpgroup of threads fetches the queries of a
// tile and, through the lists, the tiles of keys and values that they see, one tile of queries
// after another.

#pragma once

#include "backend/cuda/hopper_tile.cuh"
#include "backend/cuda/keys_items.cuh"

namespace sluice::cuda::keys_hopper {

using namespace hopper;
static_assert(kRows == kKeysTileRows);
constexpr int kCopiers = 128;  // threads

// Tiles at hand or on their way: scattered rows take longer to come than a tile takes to be worked
// on, and values, which are let go last, have the least time.
template <int kD>
struct Stages {
  static constexpr int kKeys = kD <= 128 ? 3 : 2, kValues = 3;
  static constexpr int kBytes = Sizes<kD>::bytes(kKeys + kValues);
  // Of a thread that copies, and of one that multiplies.
  static constexpr int kCopierRegisters = 88, kRegisters = 208;
};

// Where the rows of one key head begin: of clusters, running means, tokens of this pass and of
// earlier ones; of keys, then of values. Every copying warp keeps them for itself.
struct Bases {
  const std::byte* of[8];

  __device__ void find(const KeysView& view, int kv_head) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    __syncwarp();  // all lanes have read those before
    if (lane < 8) {
      const HeadRows rows = head_rows(view, lane >= 4, kv_head, 2);
      const int region = lane % 4;
      of[lane] = region == 0   ? rows.clusters
                 : region == 1 ? rows.means
                 : region == 2 ? rows.recent
                               : rows.old;
    }
    __syncwarp();
  }
};

template <int kD>
struct Shared {
  static constexpr int kKeyStages = Stages<kD>::kKeys, kValueStages = Stages<kD>::kValues;
  uint64_t queries_here, queries_used;
  uint64_t keys_here[kKeyStages], keys_used[kKeyStages];
  uint64_t values_here[kValueStages], values_used[kValueStages];
  Bases bases[kCopiers / 32];
  Item items[2];  // by turns
  int drawn[2];   // likewise: the one after
  float bias[kKeyStages][Sizes<kD>::kKeys];
};

// Stages take turns: which one it is, and the parity of its barriers.
template <int kStages>
struct Turn {
  int stage = 0;
  uint32_t parity = 0;

  __device__ Turn take() {
    const Turn now = *this;
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
    return now;
  }
};

// Where a row of a list begins, of keys and of values.
struct KeyAddress {
  const std::byte *key, *value;
};
__device__ inline KeyAddress address_of(const KeysView& view, const Bases& bases, int32_t row) {
  const auto bytes = static_cast<uint32_t>(2 * view.head_dim);
  int region = 0, index = row;
  uint32_t key_bytes = bytes, value_bytes = bytes;  // from row to row
  if (row < 0) {
    const int position = (-1 - row) / 2;
    region = 1;
    index = position - static_cast<int>(view.first_mean);
    if (row % 2 == 0) {  // the token itself
      const auto first = static_cast<int>(view.tokens.first);
      const bool recent = position >= first;
      region = recent ? 2 : 3;
      index = position - (recent ? first : static_cast<int>(view.tokens.base));
      if (recent) {
        key_bytes = static_cast<uint32_t>(2 * view.tokens.new_key_stride);
        value_bytes = static_cast<uint32_t>(2 * view.tokens.new_value_stride);
      }
    }
  }
  const auto i = static_cast<uint32_t>(index);
  return {bases.of[region] + uint64_t{i} * key_bytes,
          bases.of[4 + region] + uint64_t{i} * value_bytes};
}

// How the copying warps share kCount rows of kD numbers: as many lanes as a row has 16-byte
// chunks copy it, and each of these knows where one of their rows begins.
template <int kD, int kCount>
struct RowShare {
  static constexpr int kChunks = kD / 8, kAtOnce = 32 / kChunks;  // rows of a warp at a time
  static constexpr int kStep = kCopiers / 32 * kAtOnce;           // rows of all warps
  static constexpr int kPerWarp = kCount / (kCopiers / 32);
  static constexpr int kTurn = 8;  // copies that are started one right after the other
  static constexpr uint32_t kAllExist = kPerWarp == 32 ? 0xffffffffu : (1u << kPerWarp) - 1;
  static constexpr int kSteps = kPerWarp / kAtOnce;
  static_assert(kSteps <= kChunks && kSteps % kTurn == 0);

  // The row that this lane knows, or -1.
  static __device__ int row() {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    if (lane % kChunks >= kSteps) return -1;
    return lane % kChunks * kStep + warp * kAtOnce + lane / kChunks;
  }

  // Starts copying them to panels; mine: where the row that this lane knows begins; exist: which of
  // the warp's rows there are.
  static __device__ void copy(unsigned char* panels, const std::byte* mine, uint32_t exist,
                              int head_dim) {
    if (exist == kAllExist && head_dim == kD)
      start<true>(panels, mine, exist, head_dim);
    else
      start<false>(panels, mine, exist, head_dim);
  }

 private:
  template <bool kWhole>
  static __device__ void start(unsigned char* panels, const std::byte* mine, uint32_t exist,
                               int head_dim) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int chunk = lane % kChunks, of_step = lane / kChunks, first = warp * kAtOnce + of_step;
    const bool in_head = chunk * 8 < head_dim;
    unsigned char* to = panels + chunk / 8 * (kCount * kRowBytes) + first * kRowBytes;
    const int part = (chunk ^ first) % 8;
    const uint32_t rows = exist >> of_step * kChunks;
#pragma unroll
    for (int turn = 0; turn < kSteps; turn += kTurn) {
      // All are known before the first is started: a copy holds the registers of its address.
      const std::byte* from[kTurn];
#pragma unroll
      for (int i = 0; i < kTurn; ++i)
        from[i] = reinterpret_cast<const std::byte*>(__shfl_sync(
                      0xffffffffu, reinterpret_cast<unsigned long long>(mine), turn + i, kChunks)) +
                  16 * chunk;
#pragma unroll
      for (int i = 0; i < kTurn; ++i) {
        const int step = (turn + i) * kStep;
        unsigned char* place = to + step * kRowBytes + (part ^ step % 8) * 16;
        copy_async(place, from[i], kWhole || (in_head && (rows >> (turn + i) & 1) != 0));
      }
    }
  }
};

__device__ inline void sync_copiers() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(kCopiers) : "memory");
}

// Arrivals that say that rows are here: every thread's, once its copies are complete, and every
// warp's, for what it has written itself.
constexpr int kArrivals = kCopiers + kCopiers / 32;
__device__ inline void announce_written(uint64_t* here) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(here);
}

// The copying warpgroup. It goes on as soon as a copy is under way: barriers learn by themselves
// when it is complete.
template <int kD>
__device__ void bring_tiles(const KeysView& view, unsigned char* memory, Shared<kD>& shared,
                            int32_t* n_drawn) {
  using S = Sizes<kD>;
  using Keys = RowShare<kD, S::kKeys>;
  using Queries = RowShare<kD, kRows>;
  const auto head_dim = static_cast<int>(view.head_dim);
  unsigned char* key_tiles = memory + S::kQueryBytes;
  unsigned char* value_tiles = key_tiles + Stages<kD>::kKeys * S::kTileBytes;
  Bases& bases = shared.bases[threadIdx.x / 32];
  const int key = Keys::row(), end = n_items(view);
  Turn<Stages<kD>::kKeys> key_turn;
  Turn<Stages<kD>::kValues> value_turn;
  int n_done = 0, index = static_cast<int>(blockIdx.x);
  Item next = item_at(view, index);
  KeyRow first = row_of<S::kKeys>(view, next, 0, key);  // of the next item
  for (; index < end; ++n_done) {
    const Item item = next;
    const int far_tiles = item.far_tiles<S::kKeys>(), n_tiles = item.n_tiles<S::kKeys>();
    bases.find(view, item.kv_head);
    KeyRow ahead = first;  // lists are read a tile ahead
    const std::byte* value = nullptr;
    uint32_t exist = 0;
    int drawn = 0;
    // A stage of keys is free long before the values beside it: keys are brought a tile ahead.
    for (int tile = 0; tile <= n_tiles; ++tile) {
      const std::byte* last_value = value;
      const uint32_t last_exist = exist;
      if (tile < n_tiles) {
        const KeyRow row = ahead;
        const KeyAddress from = address_of(view, bases, row.row);
        value = from.value;
        exist = __ballot_sync(0xffffffffu, row.row != kNoRow);
        const auto [stage, parity] = key_turn.take();
        wait_barrier(&shared.keys_used[stage], parity ^ 1);
        if (tile < far_tiles && key >= 0) shared.bias[stage][key] = row.bias;
        announce_written(&shared.keys_here[stage]);
        Keys::copy(key_tiles + stage * S::kTileBytes, from.key, exist, head_dim);
        arrive_when_copied(&shared.keys_here[stage]);
        if (tile + 1 < n_tiles) ahead = row_of<S::kKeys>(view, item, tile + 1, key);
      }
      if (tile == 0) {
        const std::byte* query = query_row(view, item, Queries::row());
        wait_barrier(&shared.queries_used, static_cast<uint32_t>(n_done & 1) ^ 1);
        if (threadIdx.x == 0) shared.items[n_done % 2] = item;
        announce_written(&shared.queries_here);
        Queries::copy(memory, query, __ballot_sync(0xffffffffu, query != nullptr), head_dim);
        arrive_when_copied(&shared.queries_here);
        if (threadIdx.x == 0) drawn = atomicAdd(n_drawn, 1);
      } else {
        const auto [stage, parity] = value_turn.take();
        wait_barrier(&shared.values_used[stage], parity ^ 1);
        Keys::copy(value_tiles + stage * S::kTileBytes, last_value, last_exist, head_dim);
        arrive_when_copied(&shared.values_here[stage]);
      }
      // By now there is time to wait for memory.
      if (tile == min(2, n_tiles)) {
        if (threadIdx.x == 0) shared.drawn[n_done % 2] = drawn_item(view, drawn, n_drawn);
        sync_copiers();
        index = shared.drawn[n_done % 2];
        if (index < end) next = item_at(view, index);
      }
      if (tile == min(3, n_tiles) && index < end) first = row_of<S::kKeys>(view, next, 0, key);
    }
  }
  commit_copies();
  wait_copies<0>();
  wait_barrier(&shared.queries_used, static_cast<uint32_t>(n_done & 1) ^ 1);
  if (threadIdx.x == 0) shared.items[n_done % 2].n = 0;
  announce_written(&shared.queries_here);
  arrive(&shared.queries_here);
}

}  // namespace sluice::cuda::keys_hopper
