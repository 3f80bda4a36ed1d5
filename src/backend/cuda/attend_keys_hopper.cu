// Mode `keys` on Hopper's matrix units: as attend_hopper.cu has it for dense attention, but far
// rows are scattered, so a warpgroup of threads fetches them through the list instead of the copy
// engine. Compiled for compute capability 9.0 alone.

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

template <int kKeys>
struct Shared {
  uint64_t queries;
  uint64_t keys_here[kStages], keys_used[kStages];
  uint64_t values_here[kStages], values_used[kStages];
  float bias[kStages][kKeys];
  int32_t rows[3][kKeys];  // of far tiles, in turn; read by those who copy alone
};

// A tile of queries and the tiles of keys it sees: far ones, then near ones.
struct Work {
  QueryTile tile;
  SeenKeys seen;
  int64_t kv_head, group, n_near;
  int far_tiles, n_tiles;
};

template <int kKeys>
__device__ Work work_of(const KeysView& view) {
  Work work;
  // Late queries see most keys: they go first, so that the last blocks are short.
  work.tile = view.tiles[view.n_tiles - 1 - blockIdx.x];
  work.kv_head = blockIdx.y;
  work.group = view.n_heads / view.n_kv_heads;
  work.seen = keys_of(view, work.tile, work.kv_head);
  const SeenKeys& seen = work.seen;
  work.n_near = seen.near_end > seen.near_begin ? seen.near_end - seen.near_begin : 0;
  work.far_tiles = static_cast<int>((seen.n_far + kKeys - 1) / kKeys);
  work.n_tiles = work.far_tiles + static_cast<int>((work.n_near + kKeys - 1) / kKeys);
  return work;
}

// Writes by these threads become visible to the matrix units.
__device__ void publish_writes() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// Those who copy wait for each other.
__device__ void sync_copiers() { asm volatile("bar.sync 1, %0;\n" ::"n"(kCopiers) : "memory"); }

// Starts copying rows of kD numbers to panels; row_at(r) is where row r begins, or nullptr.
template <int kD, int kCount, typename RowAt>
__device__ void copy_rows(unsigned char* panels, int head_dim, const __nv_bfloat16* anything,
                          const RowAt& row_at) {
  constexpr int kChunks = kD / 8, kStep = kCopiers / kChunks;  // rows at a time
  const int thread = static_cast<int>(threadIdx.x);
  const int chunk = thread % kChunks, column = chunk * 8;
  unsigned char* panel = panels + chunk / 8 * (kCount * kRowBytes);
#pragma unroll 4
  for (int row = thread / kChunks; row < kCount; row += kStep) {
    const __nv_bfloat16* from = row_at(row);
    const bool exists = from != nullptr && column < head_dim;
    copy_async(panel + row * kRowBytes + ((chunk % 8) ^ (row % 8)) * 16,
               exists ? from + column : anything, exists);
  }
}

// The copying warpgroup. A copy is announced once it is complete, which is looked at when the next
// one is under way.
template <int kD>
__device__ void bring_tiles(const KeysView& view, const Work& work, unsigned char* memory,
                            Shared<Sizes<kD>::kKeys>& shared) {
  using S = Sizes<kD>;
  const auto head_dim = static_cast<int>(view.head_dim);
  const SeenKeys& seen = work.seen;
  const auto* queries = reinterpret_cast<const __nv_bfloat16*>(view.queries);
  copy_rows<kD, kRows>(memory, head_dim, queries, [&](int row) -> const __nv_bfloat16* {
    if (row >= work.tile.n * work.group) return nullptr;
    return queries + (work.tile.row + row / work.group) * view.query_stride +
           (work.kv_head * work.group + row % work.group) * view.head_dim;
  });
  commit_copies();
  uint64_t* announced = &shared.queries;
  const auto announce = [&](uint64_t* next) {
    wait_copies<1>();
    publish_writes();
    arrive(announced);
    announced = next;
  };
  // Each thread knows one row of the next far tile: the list is read a tile ahead.
  constexpr int32_t kNoRow = INT32_MIN;
  int32_t next_row = kNoRow;
  float next_bias = -INFINITY;
  const auto read_list = [&](int tile) {
    const int64_t at = int64_t{tile} * S::kKeys + threadIdx.x;
    const bool exists = threadIdx.x < S::kKeys && at < seen.n_far;
    next_row = exists ? seen.rows[at] : kNoRow;
    next_bias = exists ? seen.bias[at] : -INFINITY;
  };
  read_list(0);
  unsigned char* tiles = memory + S::kQueryBytes;
  const auto bring = [&](int tile, bool values) {
    const int stage = tile % kStages;
    const __nv_bfloat16* cache = values ? seen.cache_values : seen.cache_keys;
    const __nv_bfloat16* means = values ? seen.mean_values : seen.mean_keys;
    const __nv_bfloat16* near = values ? seen.near_values : seen.near_keys;
    unsigned char* to = tiles + (2 * stage + (values ? 1 : 0)) * S::kTileBytes;
    if (tile < work.far_tiles) {
      const int32_t* rows = shared.rows[tile % 3];
      copy_rows<kD, S::kKeys>(to, head_dim, queries, [&](int row) -> const __nv_bfloat16* {
        const int32_t from = rows[row];
        if (from == kNoRow) return nullptr;
        return from >= 0 ? cache + int64_t{from} * head_dim : means + int64_t{-1 - from} * head_dim;
      });
    } else {
      const int64_t first = int64_t{tile - work.far_tiles} * S::kKeys;
      copy_rows<kD, S::kKeys>(to, head_dim, queries, [&](int row) -> const __nv_bfloat16* {
        return first + row < work.n_near ? near + (first + row) * head_dim : nullptr;
      });
    }
    commit_copies();
    announce(values ? &shared.values_here[stage] : &shared.keys_here[stage]);
  };
  const auto parity = [](int tile) { return static_cast<uint32_t>(tile / kStages & 1) ^ 1; };
  // A stage of keys is free long before the values beside it: keys are brought a tile ahead.
  for (int tile = 0; tile <= work.n_tiles; ++tile) {
    if (tile < work.n_tiles) {
      const int stage = tile % kStages;
      wait_barrier(&shared.keys_used[stage], parity(tile));
      if (tile < work.far_tiles) {
        if (threadIdx.x < S::kKeys) {
          shared.rows[tile % 3][threadIdx.x] = next_row;
          shared.bias[stage][threadIdx.x] = next_bias;
        }
        sync_copiers();
        if (tile + 1 < work.far_tiles) read_list(tile + 1);
      }
      bring(tile, false);
    }
    if (tile > 0) {
      wait_barrier(&shared.values_used[(tile - 1) % kStages], parity(tile - 1));
      bring(tile - 1, true);
    }
  }
  wait_copies<0>();
  publish_writes();
  arrive(announced);
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
  auto* out = reinterpret_cast<__nv_bfloat16*>(view.out);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t r = row + 8 * half;
    if (r >= work.tile.n * work.group) continue;
    const float inverse = 1 / totals[half];
    __nv_bfloat16* to = out + (work.tile.row + r / work.group) * view.out_stride +
                        (work.kv_head * work.group + r % work.group) * view.head_dim;
#pragma unroll
    for (int n = 0; n < kN; ++n)
      if (column + n * 8 < view.head_dim)
        *reinterpret_cast<uint32_t*>(to + column + n * 8 + 2 * t) =
            narrowed(sums[n][2 * half] * inverse, sums[n][2 * half + 1] * inverse);
  }
}

template <int kD>
__device__ void attend_warpgroup(const KeysView& view, const Work& work, unsigned char* memory,
                                 Shared<Sizes<kD>::kKeys>& shared) {
  using S = Sizes<kD>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int half = static_cast<int>(threadIdx.x) / 128 - 1;  // of the queries
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4;   // of those that multiply
  const int64_t row = warp * 16 + lane / 4;
  const int64_t first_position = view.first_position + work.tile.row;
  const int64_t positions[2] = {first_position + row / work.group,
                                first_position + (row + 8) / work.group};
  const int64_t warp_first = first_position + warp * 16 / work.group;
  const uint32_t queries = shared_address(memory) + half * 64 * kRowBytes;
  const uint32_t tiles = shared_address(memory) + S::kQueryBytes;
  const float factor = view.scale * kLog2E;
  const auto release = [&](uint64_t* barrier) {
    __syncwarp();  // all lanes have read their biases
    if (lane == 0) arrive(barrier);
  };
  const auto finish = [&](float(&scores)[S::kKeys / 8][4], int tile) {
    if (tile < work.far_tiles) return add_bias(scores, shared.bias[tile % kStages]);
    const int64_t first_key = work.seen.near_begin + int64_t{tile - work.far_tiles} * S::kKeys;
    if (first_key + S::kKeys > work.seen.near_end ||
        (view.causal && first_key + S::kKeys - 1 > warp_first))
      mask_near(scores, first_key, work.seen.near_end, view.causal, positions);
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
  wait_barrier(&shared.queries, 0);
  wait_barrier(&shared.keys_here[0], 0);
  begin_products();
  start_scores<kD>(scores, queries, tiles);
  wait_products<0>();
  hold(scores);
  finish(scores, 0);
  release(&shared.keys_used[0]);
  take_scores(softmax, scores, factor, kept);
  take_weights();
  for (int tile = 1; tile < work.n_tiles; ++tile) {
    const int stage = tile % kStages, last = (tile - 1) % kStages;
    wait_barrier(&shared.keys_here[stage], tile / kStages & 1);
    begin_products();
    start_scores<kD>(scores, queries, tiles + 2 * stage * S::kTileBytes);
    wait_barrier(&shared.values_here[last], (tile - 1) / kStages & 1);
    begin_products();
    start_sums<kD>(sums, weights, tiles + (2 * last + 1) * S::kTileBytes);
    wait_products<1>();
    hold(scores);
    finish(scores, tile);
    release(&shared.keys_used[stage]);
    take_scores(softmax, scores, factor, kept);
    wait_products<0>();
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) hold(sums[part]);
    release(&shared.values_used[last]);
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) scale_sums(sums[part], kept);
    take_weights();
  }
  const int last = (work.n_tiles - 1) % kStages;
  wait_barrier(&shared.values_here[last], (work.n_tiles - 1) / kStages & 1);
  begin_products();
  start_sums<kD>(sums, weights, tiles + (2 * last + 1) * S::kTileBytes);
  wait_products<0>();
  add_lanes(softmax);
#pragma unroll
  for (int part = 0; part < S::kParts; ++part) {
    hold(sums[part]);
    store_part(view, work, row, part * S::kPartPanels * 64, sums[part], softmax.total);
  }
}

template <int kD>
__global__ void __launch_bounds__(kThreads, 1) keys_hopper(const __grid_constant__ KeysView view) {
  constexpr int kKeys = Sizes<kD>::kKeys;
  extern __shared__ unsigned char dynamic[];
  __shared__ Shared<kKeys> shared;
  const uint32_t offset = (1024 - shared_address(dynamic) % 1024) % 1024;
  unsigned char* memory = dynamic + offset;
  const Work work = work_of<kKeys>(view);
  if (threadIdx.x == 0) {
    make_barrier(&shared.queries, kCopiers);
    for (int stage = 0; stage < kStages; ++stage) {
      make_barrier(&shared.keys_here[stage], kCopiers);
      make_barrier(&shared.values_here[stage], kCopiers);
      make_barrier(&shared.keys_used[stage], kWarps);
      make_barrier(&shared.values_used[stage], kWarps);
    }
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kCopiers) {
    give_registers<72>();
    bring_tiles<kD>(view, work, memory, shared);
  } else {
    take_registers<216>();
    attend_warpgroup<kD>(view, work, memory, shared);
  }
}

template <int kD>
void launch(Context& context, const KeysView& view) {
  constexpr int kBytes = Sizes<kD>::kBytes;
  check(cudaFuncSetAttribute(keys_hopper<kD>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "attention's shared memory");
  const dim3 grid(static_cast<unsigned>(view.n_tiles), static_cast<unsigned>(view.n_kv_heads));
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
