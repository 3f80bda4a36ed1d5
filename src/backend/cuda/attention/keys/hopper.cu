// Mode `keys` on Hopper's tensor cores: as attention/dense/hopper.cu has it for dense attention,
// but far rows are scattered, so a warpgroup of threads fetches them through the list instead of
// TMA. A block stays for many tiles of queries: the next one is prefetched while
// the last keys of this one are processed, and its first scores are computed while this one's sums
// are stored. Compiled for compute capability 9.0 alone.

#include <algorithm>

#include "backend/cuda/attention/keys/hopper.cuh"
#include "backend/cuda/attention/keys/store.cuh"
#include "backend/cuda/attention/keys/tile.cuh"
#include "backend/cuda/runtime/dependent_launch.cuh"

namespace sluice::impl::cuda::keys {
namespace hopper {
namespace {

// Waits for rows that other threads have copied, and lets the tensor cores see them.
__device__ void wait_for_rows(uint64_t* here, uint32_t parity) {
  wait_barrier(here, parity);
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// What a thread that multiplies knows of its item. Read where all lanes are together, for whom the
// copying warps wait.
template <int kD>
struct ItemQueries {
  const Item* item;
  int first_row, n_rows, kv_head;
  int far_tiles, n_tiles;
  int warp_first, positions[2];  // of the warp's first query, and of the thread's two

  __device__ __forceinline__ ItemQueries(const KeysView& view, const Group& group, const Item* of,
                                         int warp, int row)
      : item(of), first_row(of->row), n_rows(of->n), kv_head(of->kv_head) {
    far_tiles = item->far_tiles<Sizes<kD>::kKeys>();
    n_tiles = item->n_tiles<Sizes<kD>::kKeys>();
    const auto position_of = [&](int r) {
      return static_cast<int>(query_position(view, first_row + min(group.token(r), n_rows - 1)));
    };
    warp_first = position_of(warp * 16);
    positions[0] = position_of(row);
    positions[1] = position_of(row + 8);
  }
};

// A thread of those that multiply: a warpgroup to half of the queries of every item.
template <int kD>
struct Consumer {
  using S = Sizes<kD>;

  const KeysView& view;
  Shared<kD>& shared;
  int warp, half, row;  // the warp's number among those that multiply; the half of the queries
  uint32_t queries, key_tiles, value_tiles;
  float factor;
  Group group;
  PipelineState<Stages<kD>::kKeys> key_pipe;
  PipelineState<Stages<kD>::kValues> value_pipe;
  int n_begun = 0, stage = 0;  // items; the stage of the keys at hand
  Softmax softmax;
  float sums[S::kParts][8 * S::kPartPanels][4];
  float scores[S::kKeys / 8][4], kept[2];
  uint32_t weights[S::kKeys / 16][4];

  __device__ __forceinline__ Consumer(const KeysView& keys_view, unsigned char* memory,
                                      Shared<kD>& of_block)
      : view(keys_view), shared(of_block), group(keys_view) {
    warp = uniform_warp() - 4;
    half = warp / 4;
    row = warp * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    queries = shared_address(memory) + half * 64 * kRowBytes;
    key_tiles = shared_address(memory) + S::kQueryBytes;
    value_tiles = key_tiles + Stages<kD>::kKeys * S::kTileBytes;
    factor = view.heads.scale * kLog2E;
  }

  // Its queries are seen once its first keys are waited for.
  __device__ __forceinline__ const Item* next_item() {
    wait_barrier(&shared.queries_here[half], static_cast<uint32_t>(n_begun & 1));
    return &shared.items[half][n_begun++ % 2];
  }
  // Waits for the next tile of keys and starts its scores.
  __device__ __forceinline__ void start_next_scores() {
    const auto [next, parity] = key_pipe.take();
    wait_for_rows(&shared.keys_here[next], parity);
    stage = next;
    start_scores_here();
  }
  __device__ __forceinline__ void start_scores_here() {
    wgmma_fence();
    start_scores<kD>(scores, queries, key_tiles + stage * S::kTileBytes);
  }
  __device__ __forceinline__ void wait_for_keys() {
    wait_for_rows(&shared.keys_here[key_pipe.stage], key_pipe.parity);
  }
  // Waits for the next tile of values and starts adding them up. Returns its stage.
  __device__ __forceinline__ int start_next_sums() {
    const auto [next, parity] = value_pipe.take();
    wait_for_rows(&shared.values_here[next], parity);
    wgmma_fence();
    start_sums<kD>(sums, weights, value_tiles + next * S::kTileBytes);
    return next;
  }
  __device__ __forceinline__ void take_weights() {
#pragma unroll
    for (int k = 0; k < S::kKeys / 16; ++k)
      as_operand(weights[k], scores[2 * k], scores[2 * k + 1]);
  }
  __device__ __forceinline__ void clear() {
    softmax = {};
#pragma unroll
    for (auto& part : sums)
#pragma unroll
      for (auto& column : part) column[0] = column[1] = column[2] = column[3] = 0;
  }
  __device__ __forceinline__ void hold_sums() {
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) hold(sums[part]);
  }
  __device__ __forceinline__ void scale_all() {
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) scale_sums(sums[part], kept);
    hold_sums();
  }

  // Biases of a far tile, or the mask of a near one.
  __device__ __forceinline__ void finish_scores(const ItemQueries<kD>& mine, int tile) {
    if (tile < mine.far_tiles) return add_bias(scores, shared.bias[stage]);
    const Item& item = *mine.item;
    const int64_t first_key = item.near_begin + int64_t{tile - mine.far_tiles} * S::kKeys;
    if (first_key + S::kKeys <= item.near_end &&
        (!view.heads.causal || first_key + S::kKeys - 1 <= mine.warp_first))
      return;
    const int64_t positions[2] = {mine.positions[0], mine.positions[1]};
    mask_near(scores, first_key, item.near_end, view.heads.causal, positions);
  }
  // Weights of a tile whose scores are there.
  __device__ __forceinline__ void take_tile(const ItemQueries<kD>& mine, int tile) {
    hold(scores);
    finish_scores(mine, tile);
    arrive(&shared.keys_used[stage]);
    if (tile + 1 == mine.n_tiles) arrive(&shared.queries_used[half]);
    take_scores(softmax, scores, factor, kept);
  }

  // Attends to all tiles but the values of the last; the first scores are started.
  __device__ __forceinline__ void attend_tiles(const ItemQueries<kD>& mine) {
    clear();
    wgmma_wait<0>();
    take_tile(mine, 0);
    if (mine.n_tiles > 1) wait_for_keys();
    take_weights();
    for (int tile = 1; tile < mine.n_tiles; ++tile) {
      stage = key_pipe.take().stage;
      start_scores_here();
      scale_all();
      const int last = start_next_sums();
      wgmma_wait<1>();
      take_tile(mine, tile);
      finish_weights(softmax);
      if (tile + 1 < mine.n_tiles) wait_for_keys();
      wgmma_wait<0>();
      hold_sums();
      release(&shared.values_used[last]);
      take_weights();
    }
  }
};

template <int kD>
__device__ __forceinline__ void attend_items(const KeysView& view, unsigned char* memory,
                                             Shared<kD>& shared) {
  Consumer<kD> consumer(view, memory, shared);
  const Item* item = consumer.next_item();  // every block has one
  consumer.start_next_scores();
  do {
    const ItemQueries<kD> mine(view, consumer.group, item, consumer.warp, consumer.row);
    consumer.attend_tiles(mine);
    consumer.scale_all();
    const int last = consumer.start_next_sums();
    // After the last item comes one without queries: its scores are not looked at, but the compiler
    // lets no products run across a branch.
    item = consumer.next_item();
    consumer.start_next_scores();
    wgmma_wait<1>();
    consumer.hold_sums();
    release(&shared.values_used[last]);
    store_rows(view, consumer.group,
               {.row = mine.first_row, .n = mine.n_rows, .kv_head = mine.kv_head}, consumer.row,
               consumer.sums, consumer.softmax);
  } while (item->n > 0);
  wgmma_wait<0>();
}

template <int kD>
__global__ void __launch_bounds__(kThreads, 1)
    keys_hopper(const __grid_constant__ KeysView view, int32_t* n_drawn) {
  extern __shared__ unsigned char dynamic[];
  __shared__ Shared<kD> shared;
  const uint32_t offset = (1024 - shared_address(dynamic) % 1024) % 1024;
  unsigned char* memory = dynamic + offset;
  if (threadIdx.x == 0) {
    for (int half = 0; half < 2; ++half) {
      make_barrier(&shared.queries_here[half], kHalfArrivals);
      make_barrier(&shared.queries_used[half], kLanes / 2);
    }
    for (int stage = 0; stage < Stages<kD>::kKeys; ++stage) {
      make_barrier(&shared.keys_here[stage], kArrivals);
      make_barrier(&shared.keys_used[stage], kLanes);
    }
    for (int stage = 0; stage < Stages<kD>::kValues; ++stage) {
      make_barrier(&shared.values_here[stage], kCopiers);
      make_barrier(&shared.values_used[stage], kWarps);
    }
    publish_barriers();
  }
  __syncthreads();
  wait_on_dependency();
  if (threadIdx.x < kCopiers) {
    decrease_registers<Stages<kD>::kCopierRegisters>();
    bring_tiles<kD>(view, memory, shared, n_drawn);
  } else {
    increase_registers<Stages<kD>::kRegisters>();
    attend_items<kD>(view, memory, shared);
  }
}

template <int kD>
void launch(Context& context, const KeysView& view) {
  constexpr int kBytes = Stages<kD>::kBytes;
  static_assert(kBytes + sizeof(Shared<kD>) <= 227 * 1024);  // what a block may have
  check(cudaFuncSetAttribute(keys_hopper<kD>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "attention's shared memory");
  const int64_t n_items = view.tiles.n * view.heads.n_kv_heads;
  SLUICE_CHECK(n_items <= INT32_MAX / 2);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(n_items, context.multiprocessors()));
  launch_programmatic(context, "keys_hopper", keys_hopper<kD>, LaunchShape{grid, kThreads, kBytes},
                      view, context.zeros(1));
}

}  // namespace
}  // namespace hopper

void attend_keys_hopper(Context& context, const KeysView& view) {
  SLUICE_CHECK(view.split.n == 1);
  if (view.heads.head_dim <= 64) return hopper::launch<64>(context, view);
  if (view.heads.head_dim <= 128) return hopper::launch<128>(context, view);
  hopper::launch<256>(context, view);
}

}  // namespace sluice::impl::cuda::keys
