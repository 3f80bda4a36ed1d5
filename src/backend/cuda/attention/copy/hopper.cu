// Mode `copy` on Hopper's tensor cores: as attention/dense/hopper.cu has it for dense attention
// among rows, but every weight counts as often as its key has members up to the query. A block
// stays for many tiles of queries. Compiled for compute capability 9.0 alone.

#include <algorithm>
#include <utility>

#include "backend/cuda/attention/copy/hopper.cuh"
#include "backend/cuda/attention/copy/tile.cuh"
#include "backend/cuda/runtime/dependent_launch.cuh"
#include "backend/cuda/runtime/tensor_map.h"

namespace sluice::impl::cuda::copy {
namespace hopper {
namespace {

// For a warpgroup without a query in the tile: others wait until it has let go of everything.
template <int kD>
__device__ void pass_tile(const Item& item, Shared<kD>& shared, StageState& pipe) {
  for (int tile = 0; tile < item.n_tiles; ++tile) {
    const auto [stage, parity] = pipe.take();
    wait_barrier(&shared.keys_here[stage], parity);
    release(&shared.keys_used[stage]);
    wait_barrier(&shared.counts_here[stage], parity);
    arrive(&shared.counts_used[stage]);
    wait_barrier(&shared.values_here[stage], parity);
    release(&shared.values_used[stage]);
  }
  arrive(&shared.queries_used);
}

// One tile of queries.
template <int kD>
__device__ void attend_tile(const CountedView& view, const Maps& maps, const Item& item,
                            const Places<kD>& places, Shared<kD>& shared, StageState& pipe) {
  using S = Sizes<kD>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int half = static_cast<int>(threadIdx.x) / 128 - 1;  // of the queries
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4;   // of those that multiply
  const int q0 = (static_cast<int>(view.first_tile) + item.tile) * kRows;
  const int my_query = q0 + warp * 16 + lane / 4;
  const auto first_row = static_cast<int>(view.rows.first_position);
  const uint32_t queries = shared_address(places.queries) + half * 64 * kRowBytes;
  const float factor = view.rows.scale * kLog2E;

  Softmax softmax;
  float sums[S::kParts][8 * S::kPartPanels][4] = {};
  float scores[S::kKeys / 8][4], kept[2];
  uint32_t weights[S::kKeys / 16][4];
  const auto start = [&](const StageState& now) {
    wait_barrier(&shared.keys_here[now.stage], now.parity);
    wgmma_fence();
    start_scores<kD>(scores, queries, shared_address(places.keys(now.stage)));
  };
  // Of the tiles that see a key, one stores it: that of its own query.
  const int group = static_cast<int>(view.rows.n_heads) / static_cast<int>(view.rows.n_kv_heads);
  const bool stores = view.fresh.keys != nullptr && item.head % group == 0;
  const auto to_store = [&](int tile) { return stores && tile * S::kKeys >= q0; };
  const auto store = [&](const CUtensorMap& map, const unsigned char* from, int tile) {
    for (int panel = 0; panel < S::kPanels; ++panel)
      store_box(&map, 64 * panel, tile * S::kKeys, item.head / group, from + panel * S::kKeyPanel);
  };
  const bool storing = threadIdx.x == 128;  // this thread
  const auto release_stored = [&](uint64_t* barrier) {
    if (storing) wait_for_stores();
    release(barrier);
  };
  const auto start_values = [&](const StageState& last, int tile) {
    wait_barrier(&shared.values_here[last.stage], last.parity);
    wgmma_fence();
    start_sums<kD>(sums, weights, shared_address(places.values(last.stage)));
    if (to_store(tile) && storing) store(maps.to_values, places.values(last.stage), tile);
  };
  const auto release_values = [&](const StageState& last, int tile) {
    if (to_store(tile))
      release_stored(&shared.values_used[last.stage]);
    else
      release(&shared.values_used[last.stage]);
  };
  const auto finish = [&](const StageState& now, int tile) {
    hold(scores);
    if (to_store(tile)) {
      if (storing) store(maps.to_keys, places.keys(now.stage), tile);
    } else {
      release(&shared.keys_used[now.stage]);
    }
    if (tile + 1 == item.n_tiles) arrive(&shared.queries_used);
    const int first_key = tile * S::kKeys;
    if (first_key + S::kKeys - 1 > first_row + q0 + warp * 16)
      mask_later(scores, first_row + my_query - first_key);
    wait_barrier(&shared.counts_here[now.stage], now.parity);
    take_counted(softmax, scores, factor, kept, shared.before[now.stage],
                 reinterpret_cast<const uint4*>(places.since(now.stage)) + warp * 32 + lane);
    arrive(&shared.counts_used[now.stage]);
    if (to_store(tile)) release_stored(&shared.keys_used[now.stage]);
  };
  const auto take_weights = [&] {
#pragma unroll
    for (int k = 0; k < S::kKeys / 16; ++k)
      as_operand(weights[k], scores[2 * k], scores[2 * k + 1]);
  };
  StageState now = pipe.take();
  start(now);
  wgmma_wait<0>();
  finish(now, 0);
  take_weights();
  for (int tile = 1; tile < item.n_tiles; ++tile) {
    const StageState last = now;
    now = pipe.take();
    start(now);
    start_values(last, tile - 1);
    wgmma_wait<1>();
    finish(now, tile);
    finish_weights(softmax);
    wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) hold(sums[part]);
    release_values(last, tile - 1);
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) scale_sums(sums[part], kept);
    take_weights();
  }
  start_values(now, item.n_tiles - 1);
  wgmma_wait<0>();
#pragma unroll
  for (int part = 0; part < S::kParts; ++part) hold(sums[part]);
  release_values(now, item.n_tiles - 1);
  add_lanes(softmax);
#pragma unroll
  for (int part = 0; part < S::kParts; ++part)
    store_sums(view.rows, {0, my_query, item.head}, part * S::kPartPanels * 64, sums[part],
               softmax.total);
}

template <int kD>
__global__ void __launch_bounds__(kThreads, 1)
    reps_hopper(const __grid_constant__ CountedView view, const __grid_constant__ Maps maps,
                int32_t* n_drawn) {
  extern __shared__ unsigned char dynamic[];
  __shared__ Shared<kD> shared;
  const uint32_t offset = (1024 - shared_address(dynamic) % 1024) % 1024;
  const Places<kD> places{dynamic + offset};
  if (threadIdx.x == 0) {
    make_barrier(&shared.queries_here, 1);
    make_barrier(&shared.queries_used, kLanes);
    for (int stage = 0; stage < kStages; ++stage) {
      for (uint64_t* here :
           {&shared.keys_here[stage], &shared.counts_here[stage], &shared.values_here[stage]})
        make_barrier(here, 1);
      make_barrier(&shared.keys_used[stage], kWarps);
      make_barrier(&shared.counts_used[stage], kLanes);
      make_barrier(&shared.values_used[stage], kWarps);
    }
    publish_barriers();
  }
  __syncthreads();
  wait_on_dependency();
  if (threadIdx.x < 128) {
    decrease_registers<40>();
    if (threadIdx.x == 0) bring_tiles<kD>(view, maps, places, shared, n_drawn);
  } else {
    increase_registers<232>();
    StageState pipe;
    for (int n_done = 0;; ++n_done) {
      wait_barrier(&shared.queries_here, static_cast<uint32_t>(n_done & 1));
      const Item item = shared.items[n_done % 2];
      if (item.n_tiles == 0) break;
      const int64_t q0 = (view.first_tile + item.tile) * kRows + (threadIdx.x / 128 - 1) * 64;
      if (q0 < view.rows.n_tokens)
        attend_tile<kD>(view, maps, item, places, shared, pipe);
      else
        pass_tile<kD>(item, shared, pipe);
    }
  }
}

template <int kD>
void launch(Context& context, const CountedView& view) {
  constexpr int64_t kSize = 2;                                   // bytes of a number
  static_assert(kBytes<kD> + sizeof(Shared<kD>) <= 227 * 1024);  // what a block may have
  const dense::AttendView& rows = view.rows;
  const auto stored = [&](const std::byte* data) {
    return make_map({data,
                     {rows.head_dim, rows.n_keys(), rows.n_kv_heads},
                     {rows.head_dim * kSize, rows.capacity * rows.head_dim * kSize},
                     {Sizes<kD>::kKeys, 1}});
  };
  const auto given = [&](const std::byte* data, int64_t n_heads, int64_t stride, int n) {
    return make_map({data,
                     {rows.head_dim, n_heads, rows.n_tokens},
                     {rows.head_dim * kSize, stride * kSize},
                     {1, n}});
  };
  const NewRows& fresh = view.fresh;
  Maps maps{.queries = given(rows.queries, rows.n_heads, rows.query_stride, kRows),
            .keys = stored(rows.keys),
            .values = stored(rows.values),
            .to_keys = {},
            .to_values = {}};
  if (fresh.keys != nullptr) {
    constexpr int kKeys = Sizes<kD>::kKeys;
    maps.to_keys =
        std::exchange(maps.keys, given(fresh.keys, rows.n_kv_heads, fresh.key_stride, kKeys));
    maps.to_values =
        std::exchange(maps.values, given(fresh.values, rows.n_kv_heads, fresh.value_stride, kKeys));
  }
  check(cudaFuncSetAttribute(reps_hopper<kD>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kBytes<kD>),
        "attention's shared memory");
  const int64_t n_items = view.n_tiles * rows.n_heads;
  SLUICE_CHECK(n_items <= INT32_MAX / 2 && rows.n_keys() <= INT32_MAX / 2);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(n_items, context.multiprocessors()));
  launch_programmatic(context, "reps_hopper", reps_hopper<kD>,
                      LaunchShape{grid, kThreads, kBytes<kD>}, view, maps, context.zeros(1));
}

}  // namespace
}  // namespace hopper

void attend_counted_hopper(Context& context, const CountedView& view) {
  if (view.rows.head_dim <= 64) return hopper::launch<64>(context, view);
  if (view.rows.head_dim <= 128) return hopper::launch<128>(context, view);
  hopper::launch<256>(context, view);
}

}  // namespace sluice::impl::cuda::copy
