// Attention on Hopper's tensor cores: blocks of 128 queries, one warpgroup to 64 of them, and a
// third that has TMA bring the keys and values. The scores of one tile are computed
// while the weights of the one before meet their values. Compiled for compute capability 9.0 alone.

#include "backend/cuda/attention/dense/hopper_tile.cuh"
#include "backend/cuda/attention/dense/tile.cuh"
#include "backend/cuda/runtime/tensor_map.h"

namespace sluice::impl::cuda::dense {
namespace {

using namespace hopper;

constexpr int kStages = 2;  // of keys, and of values

struct Barriers {
  uint64_t queries;
  uint64_t keys_here[kStages], keys_used[kStages];
  uint64_t values_here[kStages], values_used[kStages];
};

// Tensors as TMA sees them: (…, rows, head_dim) in boxes of 64 columns.
struct Maps {
  CUtensorMap queries, keys, values;
};

// Which tiles of keys a block works on.
struct Range {
  int64_t begin, end;
  int n_tiles;
};
__device__ Range tiles_of(const AttendView& view, int64_t q0, int keys_per_tile) {
  const int64_t n_keys = view.first_position + view.n_tokens;
  const int64_t q_end = min(q0 + kRows, view.n_tokens);
  Range range;
  range.end = view.causal ? view.first_position + q_end : n_keys;
  range.begin = 0;
  if (view.window > 0 && view.first_position + q0 + 1 > view.window)
    range.begin = (view.first_position + q0 + 1 - view.window) / keys_per_tile * keys_per_tile;
  range.n_tiles = static_cast<int>((range.end - range.begin + keys_per_tile - 1) / keys_per_tile);
  return range;
}

template <int kD>
__device__ void bring_tiles(const Maps& maps, unsigned char* memory, Barriers& barriers,
                            const Range& range, int head, int first_row, int kv_head) {
  using S = Sizes<kD>;
  arrive_and_expect(&barriers.queries, S::kQueryBytes);
  for (int panel = 0; panel < S::kPanels; ++panel)
    copy_box(memory + panel * S::kQueryPanel, &maps.queries, 64 * panel, head, first_row,
             &barriers.queries);
  unsigned char* tiles = memory + S::kQueryBytes;
  const auto bring = [&](const CUtensorMap& map, int tile, int place, uint64_t* here,
                         uint64_t* used) {
    const int stage = tile % kStages;
    wait_barrier(&used[stage], (tile / kStages & 1) ^ 1);
    arrive_and_expect(&here[stage], S::kTileBytes);
    const auto key = static_cast<int>(range.begin) + tile * S::kKeys;
    for (int panel = 0; panel < S::kPanels; ++panel)
      copy_box(tiles + (2 * stage + place) * S::kTileBytes + panel * S::kKeyPanel, &map, 64 * panel,
               key, kv_head, &here[stage]);
  };
  for (int tile = 0; tile < range.n_tiles; ++tile) {
    bring(maps.keys, tile, 0, barriers.keys_here, barriers.keys_used);
    bring(maps.values, tile, 1, barriers.values_here, barriers.values_used);
  }
}

template <int kD>
__device__ void attend_warpgroup(const AttendView& view, unsigned char* memory, Barriers& barriers,
                                 const Range& range, int64_t q0, int64_t head, int64_t batch) {
  using S = Sizes<kD>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;  // of warps
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4;    // of those that multiply
  const int64_t my_query = q0 + warp * 16 + lane / 4, n_keys = view.first_position + view.n_tokens;
  const int64_t warp_first = view.first_position + q0 + warp * 16, warp_last = warp_first + 15;
  const int64_t positions[2] = {view.first_position + my_query, view.first_position + my_query + 8};
  const uint32_t queries = shared_address(memory) + group * 64 * kRowBytes;
  const uint32_t tiles = shared_address(memory) + S::kQueryBytes;
  const float factor = view.scale * kLog2E;
  const auto mask = [&](float(&scores)[S::kKeys / 8][4], int tile) {
    const int64_t j = range.begin + int64_t{tile} * S::kKeys;
    if ((view.causal && j + S::kKeys - 1 > warp_first) || j + S::kKeys > n_keys ||
        (view.window > 0 && j <= warp_last - view.window))
      mask_scores(scores, seen_from(view, j, positions, n_keys));
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
  wait_barrier(&barriers.queries, 0);
  wait_barrier(&barriers.keys_here[0], 0);
  wgmma_fence();
  start_scores<kD>(scores, queries, tiles);
  wgmma_wait<0>();
  hold(scores);
  release(&barriers.keys_used[0]);
  mask(scores, 0);
  take_scores(softmax, scores, factor, kept);
  take_weights();
  for (int tile = 1; tile < range.n_tiles; ++tile) {
    const int stage = tile % kStages, last = (tile - 1) % kStages;
    wait_barrier(&barriers.keys_here[stage], tile / kStages & 1);
    wgmma_fence();
    start_scores<kD>(scores, queries, tiles + 2 * stage * S::kTileBytes);
    wait_barrier(&barriers.values_here[last], (tile - 1) / kStages & 1);
    wgmma_fence();
    start_sums<kD>(sums, weights, tiles + (2 * last + 1) * S::kTileBytes);
    wgmma_wait<1>();
    hold(scores);
    release(&barriers.keys_used[stage]);
    mask(scores, tile);
    take_scores(softmax, scores, factor, kept);
    finish_weights(softmax);
    wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) hold(sums[part]);
    release(&barriers.values_used[last]);
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) scale_sums(sums[part], kept);
    take_weights();
  }
  const int last = (range.n_tiles - 1) % kStages;
  wait_barrier(&barriers.values_here[last], (range.n_tiles - 1) / kStages & 1);
  wgmma_fence();
  start_sums<kD>(sums, weights, tiles + (2 * last + 1) * S::kTileBytes);
  wgmma_wait<0>();
  add_lanes(softmax);
#pragma unroll
  for (int part = 0; part < S::kParts; ++part) {
    hold(sums[part]);
    store_sums(view, {batch * view.n_tokens, my_query, head}, part * S::kPartPanels * 64,
               sums[part], softmax.total);
  }
}

template <int kD>
__global__ void __launch_bounds__(kThreads, 1)
    hopper_tiles(AttendView view, const __grid_constant__ Maps maps) {
  extern __shared__ unsigned char shared[];
  __shared__ Barriers barriers;
  const uint32_t offset = (1024 - shared_address(shared) % 1024) % 1024;
  unsigned char* memory = shared + offset;
  // Late queries see most keys: they go first, so that the last blocks are short.
  const int64_t q0 = (int64_t{gridDim.x} - 1 - blockIdx.x) * kRows;
  const int64_t head = blockIdx.y, batch = blockIdx.z;
  const Range range = tiles_of(view, q0, Sizes<kD>::kKeys);
  if (threadIdx.x == 0) {
    make_barrier(&barriers.queries, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      make_barrier(&barriers.keys_here[stage], 1);
      make_barrier(&barriers.values_here[stage], 1);
      make_barrier(&barriers.keys_used[stage], kWarps);
      make_barrier(&barriers.values_used[stage], kWarps);
    }
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    decrease_registers<24>();
    if (threadIdx.x == 0) {
      const int64_t kv_head = head / (view.n_heads / view.n_kv_heads);
      bring_tiles<kD>(maps, memory, barriers, range, static_cast<int>(head),
                      static_cast<int>(batch * view.n_tokens + q0),
                      static_cast<int>(batch * view.n_kv_heads + kv_head));
    }
  } else {
    increase_registers<240>();
    attend_warpgroup<kD>(view, memory, barriers, range, q0, head, batch);
  }
}

template <int kD>
void launch(Context& context, const AttendView& view) {
  using S = Sizes<kD>;
  const int64_t size = 2;  // bytes of a number
  // Keys end where they are filled: what lies behind may be anything, and is read as zeros.
  const auto cache = [&](const std::byte* data) {
    return make_map({data,
                     {view.head_dim, view.n_keys(), view.n_batch * view.n_kv_heads},
                     {view.head_dim * size, view.capacity * view.head_dim * size},
                     {S::kKeys, 1}});
  };
  const Maps maps{make_map({view.queries,
                            {view.head_dim, view.n_heads, view.n_batch * view.n_tokens},
                            {view.head_dim * size, view.query_stride * size},
                            {1, kRows}}),
                  cache(view.keys), cache(view.values)};
  check(cudaFuncSetAttribute(hopper_tiles<kD>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             S::bytes(2 * kStages)),
        "attention's shared memory");
  const dim3 grid(static_cast<unsigned>(ceil_div(view.n_tokens, kRows)),
                  static_cast<unsigned>(view.n_heads), static_cast<unsigned>(view.n_batch));
  hopper_tiles<kD><<<grid, kThreads, S::bytes(2 * kStages), context.stream()>>>(view, maps);
  check_launch("hopper_tiles");
}

}  // namespace

void attend_hopper(Context& context, const AttendView& view) {
  if (view.head_dim <= 64) return launch<64>(context, view);
  if (view.head_dim <= 128) return launch<128>(context, view);
  launch<256>(context, view);
}

}  // namespace sluice::impl::cuda::dense
