// Mode `keys` on Hopper's matrix units: as attend_hopper.cu has it for dense attention, but far
// rows are scattered, so a warpgroup of threads fetches them through the list instead of the copy
// engine. A block stays for many tiles of queries: what the next one needs is on its way while the
// last keys of this one are worked on. Compiled for compute capability 9.0 alone.

#include <algorithm>

#include "backend/cuda/early.cuh"
#include "backend/cuda/keys_hopper.cuh"
#include "backend/cuda/keys_tile.cuh"

namespace sluice::cuda {
namespace keys_hopper {
namespace {

// Waits for rows that other threads have copied, and lets the matrix units see them.
__device__ void wait_for_rows(uint64_t* here, uint32_t parity) {
  wait_barrier(here, parity);
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

template <int kN>
__device__ void store_part(const KeysView& view, const Item& item, int row, int column,
                           const float (&sums)[kN][4], const float (&totals)[2]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const auto group = static_cast<int>(view.n_heads / view.n_kv_heads);
  auto* out = reinterpret_cast<__nv_bfloat16*>(view.out);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + 8 * half;
    if (r >= item.n * group) continue;
    const float inverse = 1 / totals[half];
    __nv_bfloat16* to = out + (item.row + r / group) * view.out_stride +
                        (item.kv_head * group + r % group) * view.head_dim;
#pragma unroll
    for (int n = 0; n < kN; ++n)
      if (column + n * 8 < view.head_dim)
        *reinterpret_cast<uint32_t*>(to + column + n * 8 + 2 * t) =
            narrowed(sums[n][2 * half] * inverse, sums[n][2 * half + 1] * inverse);
  }
}

template <int kD>
struct Turns {
  Turn<Stages<kD>::kKeys> keys;
  Turn<Stages<kD>::kValues> values;
};

// One tile of queries.
template <int kD>
__device__ void attend_tile(const KeysView& view, const Item& item, unsigned char* memory,
                            Shared<kD>& shared, Turns<kD>& turns) {
  using S = Sizes<kD>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int half = static_cast<int>(threadIdx.x) / 128 - 1;  // of the queries
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4;   // of those that multiply
  const int row = warp * 16 + lane / 4, group = static_cast<int>(view.n_heads / view.n_kv_heads);
  const auto position_of = [&](int r) {
    return static_cast<int>(query_position(view, item.row + min(r / group, item.n - 1)));
  };
  const int warp_first = position_of(warp * 16);
  const int my_first = position_of(row), my_second = position_of(row + 8);
  const uint32_t queries = shared_address(memory) + half * 64 * kRowBytes;
  const uint32_t key_tiles = shared_address(memory) + S::kQueryBytes;
  const uint32_t value_tiles = key_tiles + Stages<kD>::kKeys * S::kTileBytes;
  const int far_tiles = item.far_tiles<S::kKeys>(), n_tiles = item.n_tiles<S::kKeys>();
  const float factor = view.scale * kLog2E;
  const auto release = [&](uint64_t* barrier) {
    __syncwarp();  // all lanes have read their biases
    if (lane == 0) arrive(barrier);
  };
  const auto finish = [&](float(&scores)[S::kKeys / 8][4], int tile, int stage) {
    if (tile < far_tiles) return add_bias(scores, shared.bias[stage]);
    const int64_t first_key = item.near_begin + int64_t{tile - far_tiles} * S::kKeys;
    if (first_key + S::kKeys <= item.near_end &&
        (!view.causal || first_key + S::kKeys - 1 <= warp_first))
      return;
    const int64_t positions[2] = {my_first, my_second};
    mask_near(scores, first_key, item.near_end, view.causal, positions);
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
  const auto [first, first_parity] = turns.keys.take();
  wait_for_rows(&shared.keys_here[first], first_parity);
  begin_products();
  start_scores<kD>(scores, queries, key_tiles + first * S::kTileBytes);
  wait_products<0>();
  hold(scores);
  finish(scores, 0, first);
  release(&shared.keys_used[first]);
  if (n_tiles == 1) release(&shared.queries_used);
  take_scores(softmax, scores, factor, kept);
  take_weights();
  for (int tile = 1; tile < n_tiles; ++tile) {
    const auto [stage, parity] = turns.keys.take();
    const auto [last, last_parity] = turns.values.take();
    wait_for_rows(&shared.keys_here[stage], parity);
    begin_products();
    start_scores<kD>(scores, queries, key_tiles + stage * S::kTileBytes);
    wait_for_rows(&shared.values_here[last], last_parity);
    begin_products();
    start_sums<kD>(sums, weights, value_tiles + last * S::kTileBytes);
    wait_products<1>();
    hold(scores);
    finish(scores, tile, stage);
    release(&shared.keys_used[stage]);
    if (tile + 1 == n_tiles) release(&shared.queries_used);
    take_scores(softmax, scores, factor, kept);
    finish_weights(softmax);
    wait_products<0>();
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) hold(sums[part]);
    release(&shared.values_used[last]);
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) scale_sums(sums[part], kept);
    take_weights();
  }
  const auto [last, last_parity] = turns.values.take();
  wait_for_rows(&shared.values_here[last], last_parity);
  begin_products();
  start_sums<kD>(sums, weights, value_tiles + last * S::kTileBytes);
  wait_products<0>();
#pragma unroll
  for (int part = 0; part < S::kParts; ++part) hold(sums[part]);
  release(&shared.values_used[last]);
  add_lanes(softmax);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int r = row + 8 * i;
    if (lane % 4 == 0 && r < item.n * group)
      store_log_sum(view, item.row + r / group, item.kv_head * group + r % group,
                    softmax.largest[i] * view.scale + logf(softmax.total[i]));
  }
#pragma unroll
  for (int part = 0; part < S::kParts; ++part)
    store_part(view, item, row, part * S::kPartPanels * 64, sums[part], softmax.total);
}

template <int kD>
__global__ void __launch_bounds__(kThreads, 1)
    keys_hopper(const __grid_constant__ KeysView view, int32_t* n_drawn) {
  extern __shared__ unsigned char dynamic[];
  __shared__ Shared<kD> shared;
  const uint32_t offset = (1024 - shared_address(dynamic) % 1024) % 1024;
  unsigned char* memory = dynamic + offset;
  if (threadIdx.x == 0) {
    make_barrier(&shared.queries_here, kArrivals);
    make_barrier(&shared.queries_used, kWarps);
    for (int stage = 0; stage < Stages<kD>::kKeys; ++stage) {
      make_barrier(&shared.keys_here[stage], kArrivals);
      make_barrier(&shared.keys_used[stage], kWarps);
    }
    for (int stage = 0; stage < Stages<kD>::kValues; ++stage) {
      make_barrier(&shared.values_here[stage], kCopiers);
      make_barrier(&shared.values_used[stage], kWarps);
    }
    publish_barriers();
  }
  __syncthreads();
  wait_for_earlier();
  if (threadIdx.x < kCopiers) {
    give_registers<Stages<kD>::kCopierRegisters>();
    bring_tiles<kD>(view, memory, shared, n_drawn);
  } else {
    take_registers<Stages<kD>::kRegisters>();
    Turns<kD> turns;
    for (int n_done = 0;; ++n_done) {
      wait_for_rows(&shared.queries_here, static_cast<uint32_t>(n_done & 1));
      const Item& item = shared.items[n_done % 2];
      if (item.n == 0) break;
      attend_tile<kD>(view, item, memory, shared, turns);
    }
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
  launch_early(context, "keys_hopper", keys_hopper<kD>, LaunchShape{grid, kThreads, kBytes}, view,
               context.zeros(1));
}

}  // namespace
}  // namespace keys_hopper

void attend_keys_hopper(Context& context, const KeysView& view) {
  SLUICE_CHECK(view.n_splits == 1);
  if (view.head_dim <= 64) return keys_hopper::launch<64>(context, view);
  if (view.head_dim <= 128) return keys_hopper::launch<128>(context, view);
  keys_hopper::launch<256>(context, view);
}

}  // namespace sluice::cuda
