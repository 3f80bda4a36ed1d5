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

namespace sluice::impl::cuda {
namespace keys_hopper {
namespace {

// Waits for rows that other threads have copied, and lets the tensor cores see them.
__device__ void wait_for_rows(uint64_t* here, uint32_t parity) {
  wait_barrier(here, parity);
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// Those that multiply: a warpgroup to half of the queries of every item.
template <int kD>
__device__ void attend_items(const KeysView& view, unsigned char* memory, Shared<kD>& shared) {
  using S = Sizes<kD>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = uniform_warp() - 4;  // of those that multiply
  const int half = warp / 4;            // of the queries
  const int row = warp * 16 + lane / 4;
  const uint32_t queries = shared_address(memory) + half * 64 * kRowBytes;
  const uint32_t key_tiles = shared_address(memory) + S::kQueryBytes;
  const uint32_t value_tiles = key_tiles + Stages<kD>::kKeys * S::kTileBytes;
  const float factor = view.scale * kLog2E;
  const Group group(view);
  PipelineState<Stages<kD>::kKeys> key_pipe;
  PipelineState<Stages<kD>::kValues> value_pipe;
  int n_begun = 0;

  Softmax softmax;
  float sums[S::kParts][8 * S::kPartPanels][4];
  float scores[S::kKeys / 8][4], kept[2];
  uint32_t weights[S::kKeys / 16][4];
  const auto take_weights = [&] {
#pragma unroll
    for (int k = 0; k < S::kKeys / 16; ++k)
      as_operand(weights[k], scores[2 * k], scores[2 * k + 1]);
  };
  const auto hold_sums = [&] {
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) hold(sums[part]);
  };
  const auto scale_all = [&] {
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) scale_sums(sums[part], kept);
    hold_sums();
  };
  const auto next_item = [&] {  // its queries are seen once its first keys are waited for
    wait_barrier(&shared.queries_here[half], static_cast<uint32_t>(n_begun & 1));
    return &shared.items[half][n_begun++ % 2];
  };
  // These wait for the next tile and tell its stage.
  const auto next_keys = [&] {
    const auto [stage, parity] = key_pipe.take();
    wait_for_rows(&shared.keys_here[stage], parity);
    return stage;
  };
  const auto next_values = [&] {
    const auto [stage, parity] = value_pipe.take();
    wait_for_rows(&shared.values_here[stage], parity);
    return stage;
  };
  const auto start_scores_of = [&](int stage) {
    wgmma_fence();
    start_scores<kD>(scores, queries, key_tiles + stage * S::kTileBytes);
  };
  const auto start_sums_of = [&](int stage) {
    wgmma_fence();
    start_sums<kD>(sums, weights, value_tiles + stage * S::kTileBytes);
  };

  const Item* item = next_item();  // every block has one
  int stage = next_keys();
  start_scores_of(stage);
  do {
    // Read where all lanes are together, for whom the copying warps wait.
    const int first_row = item->row, n_rows = item->n, kv_head = item->kv_head;
    const int far_tiles = item->far_tiles<S::kKeys>(), n_tiles = item->n_tiles<S::kKeys>();
    const auto position_of = [&](int r) {
      return static_cast<int>(query_position(view, first_row + min(group.token(r), n_rows - 1)));
    };
    const int warp_first = position_of(warp * 16);
    const int my_first = position_of(row), my_second = position_of(row + 8);
    const auto finish = [&](int tile) {
      if (tile < far_tiles) return add_bias(scores, shared.bias[stage]);
      const int64_t first_key = item->near_begin + int64_t{tile - far_tiles} * S::kKeys;
      if (first_key + S::kKeys <= item->near_end &&
          (!view.causal || first_key + S::kKeys - 1 <= warp_first))
        return;
      const int64_t positions[2] = {my_first, my_second};
      mask_near(scores, first_key, item->near_end, view.causal, positions);
    };
    // Weights of a tile whose scores are there.
    const auto take_tile = [&](int tile) {
      hold(scores);
      finish(tile);
      arrive(&shared.keys_used[stage]);
      if (tile + 1 == n_tiles) arrive(&shared.queries_used[half]);
      take_scores(softmax, scores, factor, kept);
    };

    softmax = {};
#pragma unroll
    for (auto& part : sums)
#pragma unroll
      for (auto& column : part) column[0] = column[1] = column[2] = column[3] = 0;
    wgmma_wait<0>();
    take_tile(0);
    if (n_tiles > 1) wait_for_rows(&shared.keys_here[key_pipe.stage], key_pipe.parity);
    take_weights();
    for (int tile = 1; tile < n_tiles; ++tile) {
      stage = key_pipe.take().stage;
      start_scores_of(stage);
      scale_all();
      const int last = next_values();
      start_sums_of(last);
      wgmma_wait<1>();
      take_tile(tile);
      finish_weights(softmax);
      if (tile + 1 < n_tiles) wait_for_rows(&shared.keys_here[key_pipe.stage], key_pipe.parity);
      wgmma_wait<0>();
      hold_sums();
      release(&shared.values_used[last]);
      take_weights();
    }
    scale_all();
    const int last = next_values();
    start_sums_of(last);
    // After the last item comes one without queries: its scores are not looked at, but the compiler
    // lets no products run across a branch.
    const Item* next = next_item();
    stage = next_keys();
    start_scores_of(stage);
    wgmma_wait<1>();
    hold_sums();
    release(&shared.values_used[last]);
    store_rows(view, group, {.row = first_row, .n = n_rows, .kv_head = kv_head}, row, sums,
               softmax);
    item = next;
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
  const int64_t n_items = view.n_tiles * view.n_kv_heads;
  SLUICE_CHECK(n_items <= INT32_MAX / 2);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(n_items, context.multiprocessors()));
  launch_programmatic(context, "keys_hopper", keys_hopper<kD>, LaunchShape{grid, kThreads, kBytes},
                      view, context.zeros(1));
}

}  // namespace
}  // namespace keys_hopper

void attend_keys_hopper(Context& context, const KeysView& view) {
  SLUICE_CHECK(view.n_splits == 1);
  if (view.head_dim <= 64) return keys_hopper::launch<64>(context, view);
  if (view.head_dim <= 128) return keys_hopper::launch<128>(context, view);
  keys_hopper::launch<256>(context, view);
}

}  // namespace sluice::impl::cuda
