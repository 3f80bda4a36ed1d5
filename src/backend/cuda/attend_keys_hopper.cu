// Mode `keys` on Hopper's matrix units: as attend_hopper.cu has it for dense attention, but far
// rows are scattered, so a warpgroup of threads fetches them through the list instead of the copy
// engine. A block stays for many tiles of queries: what the next one needs is on its way while the
// last keys of this one are worked on. Compiled for compute capability 9.0 alone.

#include <algorithm>

#include "backend/cuda/keys_tile.cuh"
#include "backend/cuda/wgmma.cuh"

namespace sluice::cuda {
namespace {

constexpr int kRows = kKeysTileRows;
constexpr int kThreads = 3 * 128;
constexpr int kCopiers = 128;   // threads
constexpr int kWarps = 8;       // that multiply
constexpr int kRowBytes = 128;  // of a panel: 64 numbers
constexpr int kStages = 2;
constexpr int kEightRows = 8 * kRowBytes;

template <int kD>
struct Sizes {
  static constexpr int kPanels = kD / 64;
  static constexpr int kKeys = kD <= 128 ? 128 : 64;
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

template <int kKeys>
struct Shared {
  uint64_t queries_here, queries_used;
  uint64_t keys_here[kStages], keys_used[kStages];
  uint64_t values_here[kStages], values_used[kStages];
  Work work[2];  // by turns
  float bias[kStages][kKeys];
};

// Of the n-th use of stages that take turns: which one it is, and the parity of its barriers.
struct Turn {
  int stage;
  uint32_t parity;
};
__device__ Turn turn_of(int n) { return {n % kStages, static_cast<uint32_t>(n / kStages & 1)}; }

// A tile of queries of one key head. Late queries see most keys: they go first, so that the last
// ones are short.
struct Item {
  QueryTile tile;
  int64_t kv_head;
  SeenKeys seen;
};
__device__ int64_t n_items(const KeysView& view) { return view.n_tiles * view.n_kv_heads; }
__device__ Item item_at(const KeysView& view, int64_t index) {
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
__device__ const std::byte* query_row(const KeysView& view, const Item& item, int r) {
  const auto group = static_cast<int>(view.n_heads / view.n_kv_heads);
  if (r >= item.tile.n * group) return nullptr;
  return view.queries + 2 * ((item.tile.row + r / group) * view.query_stride +
                             (item.kv_head * group + r % group) * view.head_dim);
}

// Waits for rows that other threads have copied, and lets the matrix units see them.
__device__ void wait_for_rows(uint64_t* here, uint32_t parity) {
  wait_barrier(here, parity);
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
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
__device__ void bring_tiles(const KeysView& view, unsigned char* memory,
                            Shared<Sizes<kD>::kKeys>& shared) {
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
        const auto [stage, parity] = turn_of(n_keys++);
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
        const auto [stage, parity] = turn_of(n_values++);
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

// Starts scores = queries times a tile of keys.
template <int kD>
__device__ void start_scores(float (&scores)[Sizes<kD>::kKeys / 8][4], uint32_t queries,
                             uint32_t keys) {
  using S = Sizes<kD>;
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) {
    const uint32_t panel = k / 4, column = k % 4 * 32;  // bytes
    multiply_shared(scores, operand_at(queries + panel * S::kQueryPanel + column, 16, kEightRows),
                    operand_at(keys + panel * S::kKeyPanel + column, 16, kEightRows), k > 0);
  }
  commit_products();
}

// Starts sums += weights times a tile of values.
template <int kD>
__device__ void start_sums(float (&sums)[Sizes<kD>::kParts][8 * Sizes<kD>::kPartPanels][4],
                           const uint32_t (&weights)[Sizes<kD>::kKeys / 16][4], uint32_t values) {
  using S = Sizes<kD>;
#pragma unroll
  for (int part = 0; part < S::kParts; ++part)
#pragma unroll
    for (int k = 0; k < S::kKeys / 16; ++k)
      multiply_registers(
          sums[part], weights[k],
          operand_at(values + part * S::kPartPanels * S::kKeyPanel + k * 2 * kEightRows,
                     S::kKeyPanel, kEightRows));
  commit_products();
}

template <int kN>
__device__ void store_part(const KeysView& view, const Work& work, int64_t row, int column,
                           const float (&sums)[kN][4], const float (&totals)[2]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int64_t group = view.n_heads / view.n_kv_heads;
  auto* out = reinterpret_cast<__nv_bfloat16*>(view.out);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t r = row + 8 * half;
    if (r >= work.tile.n * group) continue;
    const float inverse = 1 / totals[half];
    __nv_bfloat16* to = out + (work.tile.row + r / group) * view.out_stride +
                        (work.kv_head * group + r % group) * view.head_dim;
#pragma unroll
    for (int n = 0; n < kN; ++n)
      if (column + n * 8 < view.head_dim)
        *reinterpret_cast<uint32_t*>(to + column + n * 8 + 2 * t) =
            narrowed(sums[n][2 * half] * inverse, sums[n][2 * half + 1] * inverse);
  }
}

// One tile of queries. n_keys and n_values: tiles taken in so far.
template <int kD>
__device__ void attend_tile(const KeysView& view, const Work& work, unsigned char* memory,
                            Shared<Sizes<kD>::kKeys>& shared, int& n_keys, int& n_values) {
  using S = Sizes<kD>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int half = static_cast<int>(threadIdx.x) / 128 - 1;  // of the queries
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4;   // of those that multiply
  const int64_t row = warp * 16 + lane / 4, group = view.n_heads / view.n_kv_heads;
  const auto position_of = [&](int64_t r) {
    return query_position(view, work.tile.row + min(r / group, work.tile.n - 1));
  };
  const int64_t positions[2] = {position_of(row), position_of(row + 8)};
  const int64_t warp_first = position_of(warp * 16);
  const uint32_t queries = shared_address(memory) + half * 64 * kRowBytes;
  const uint32_t tiles = shared_address(memory) + S::kQueryBytes;
  const float factor = view.scale * kLog2E;
  const auto release = [&](uint64_t* barrier) {
    __syncwarp();  // all lanes have read their biases
    if (lane == 0) arrive(barrier);
  };
  const auto finish = [&](float(&scores)[S::kKeys / 8][4], int tile, int stage) {
    if (tile < work.far_tiles) return add_bias(scores, shared.bias[stage]);
    const int64_t first_key = work.near_begin + int64_t{tile - work.far_tiles} * S::kKeys;
    if (first_key + S::kKeys > work.near_end ||
        (view.causal && first_key + S::kKeys - 1 > warp_first))
      mask_near(scores, first_key, work.near_end, view.causal, positions);
  };

  Softmax softmax;
  float sums[S::kParts][8 * S::kPartPanels][4] = {};
  float scores[S::kKeys / 8][4], kept[2];
  uint32_t weights[S::kKeys / 16][4];
  const auto take_weights = [&] {
#pragma unroll
    for (int k = 0; k < S::kKeys / 16; ++k)
      as_operand(weights[k], scores[2 * k], scores[2 * k + 1]);
  };
  const auto [first, first_parity] = turn_of(n_keys++);
  wait_for_rows(&shared.keys_here[first], first_parity);
  begin_products();
  start_scores<kD>(scores, queries, tiles + 2 * first * S::kTileBytes);
  wait_products<0>();
  hold(scores);
  finish(scores, 0, first);
  release(&shared.keys_used[first]);
  if (work.n_tiles == 1) release(&shared.queries_used);
  take_scores(softmax, scores, factor, kept);
  take_weights();
  for (int tile = 1; tile < work.n_tiles; ++tile) {
    const auto [stage, parity] = turn_of(n_keys++);
    const auto [last, last_parity] = turn_of(n_values++);
    wait_for_rows(&shared.keys_here[stage], parity);
    begin_products();
    start_scores<kD>(scores, queries, tiles + 2 * stage * S::kTileBytes);
    wait_for_rows(&shared.values_here[last], last_parity);
    begin_products();
    start_sums<kD>(sums, weights, tiles + (2 * last + 1) * S::kTileBytes);
    wait_products<1>();
    hold(scores);
    finish(scores, tile, stage);
    release(&shared.keys_used[stage]);
    if (tile + 1 == work.n_tiles) release(&shared.queries_used);
    take_scores(softmax, scores, factor, kept);
    wait_products<0>();
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) hold(sums[part]);
    release(&shared.values_used[last]);
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) scale_sums(sums[part], kept);
    take_weights();
  }
  const auto [last, last_parity] = turn_of(n_values++);
  wait_for_rows(&shared.values_here[last], last_parity);
  begin_products();
  start_sums<kD>(sums, weights, tiles + (2 * last + 1) * S::kTileBytes);
  wait_products<0>();
#pragma unroll
  for (int part = 0; part < S::kParts; ++part) hold(sums[part]);
  release(&shared.values_used[last]);
  add_lanes(softmax);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t r = row + 8 * i;
    if (lane % 4 == 0 && r < work.tile.n * group)
      store_log_sum(view, work.tile.row + r / group, work.kv_head * group + r % group,
                    softmax.largest[i] * view.scale + logf(softmax.total[i]));
  }
#pragma unroll
  for (int part = 0; part < S::kParts; ++part)
    store_part(view, work, row, part * S::kPartPanels * 64, sums[part], softmax.total);
}

template <int kD>
__global__ void __launch_bounds__(kThreads, 1) keys_hopper(const __grid_constant__ KeysView view) {
  constexpr int kKeys = Sizes<kD>::kKeys;
  extern __shared__ unsigned char dynamic[];
  __shared__ Shared<kKeys> shared;
  const uint32_t offset = (1024 - shared_address(dynamic) % 1024) % 1024;
  unsigned char* memory = dynamic + offset;
  if (threadIdx.x == 0) {
    make_barrier(&shared.queries_here, 2 * kCopiers);
    make_barrier(&shared.queries_used, kWarps);
    for (int stage = 0; stage < kStages; ++stage) {
      make_barrier(&shared.keys_here[stage], 2 * kCopiers);
      make_barrier(&shared.values_here[stage], kCopiers);
      make_barrier(&shared.keys_used[stage], kWarps);
      make_barrier(&shared.values_used[stage], kWarps);
    }
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kCopiers) {
    give_registers<72>();
    bring_tiles<kD>(view, memory, shared);
  } else {
    take_registers<216>();
    int n_keys = 0, n_values = 0, n_done = 0;
    for (int64_t item = blockIdx.x; item < n_items(view); item += gridDim.x, ++n_done) {
      wait_for_rows(&shared.queries_here, static_cast<uint32_t>(n_done & 1));
      attend_tile<kD>(view, shared.work[n_done % 2], memory, shared, n_keys, n_values);
    }
  }
}

template <int kD>
void launch(Context& context, const KeysView& view) {
  constexpr int kBytes = Sizes<kD>::kBytes;
  check(cudaFuncSetAttribute(keys_hopper<kD>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "attention's shared memory");
  const auto grid = static_cast<unsigned>(
      std::min<int64_t>(view.n_tiles * view.n_kv_heads, context.multiprocessors()));
  keys_hopper<kD><<<grid, kThreads, kBytes, context.stream()>>>(view);
  check_launch("keys_hopper");
}

}  // namespace

void attend_keys_hopper(Context& context, const KeysView& view) {
  SLUICE_CHECK(view.n_splits == 1);
  if (view.head_dim <= 64) return launch<64>(context, view);
  if (view.head_dim <= 128) return launch<128>(context, view);
  launch<256>(context, view);
}

}  // namespace sluice::cuda
