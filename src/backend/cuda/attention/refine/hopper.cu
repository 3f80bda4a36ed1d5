// Refined attention on Hopper, prefill: wgmma and TMA. Thread blocks stay and draw work items, 128
// queries of one head each, a consumer warpgroup to 64 of them. One running softmax goes over
//   1. near keys
//   2. means and exact pages: only scores, for the normaliser that decisions compare with
//   3. these again: every row decides what it opens, and reads the rest as means
//   4. members of the opened pages
// Heads without means read exact pages after near keys. The scores of one tile are computed while
// the weights of the one before meet their values. Compiled for compute capability 9.0 alone.

#include <algorithm>

#include "backend/cuda/attention/refine/hopper_pipeline.cuh"
#include "backend/cuda/attention/refine/output.cuh"
#include "backend/cuda/runtime/tensor_map.h"

namespace sluice::impl::cuda::refine {
namespace {

using namespace hopper;
using refine::Sizes;

constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

// |q|^2 of this lane's two rows. The swizzle moves parts of a row within the row.
template <int kD>
__device__ void query_norms(float (&norm2)[2], const unsigned char* queries, int warp) {
  using S = Sizes<kD>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const unsigned char* row = queries + (warp * 16 + lane / 4 + 8 * half) * kRowBytes;
    float sum = 0;
#pragma unroll
    for (int panel = 0; panel < S::kPanels; ++panel)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float q[8];
        widen_eight(
            *reinterpret_cast<const uint4*>(row + panel * S::kQueryPanel + (lane % 4 * 2 + i) * 16),
            q);
#pragma unroll
        for (const float x : q) sum = fmaf(x, x, sum);
      }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    norm2[half] = sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  }
}

template <int kD>
__device__ void attend_items(const RefineView& view, unsigned char* memory, Shared<kD>& shared) {
  using S = Sizes<kD>;
  constexpr int kN = S::kKeys / 8;
  const int warp = uniform_warp() - 4;  // of the consumers
  const uint32_t queries = shared_address(memory) + warp / 4 * 64 * kRowBytes;
  const uint32_t key_tiles = shared_address(memory) + S::kQueryBytes;
  const uint32_t value_tiles = key_tiles + S::kKeyStages * S::kTileBytes;
  const float factor = view.scale * kLog2E, log_page = kLog2Page / factor;
  const auto tile_rows = static_cast<int>(view.tile);
  PipelineState<S::kKeyStages> key_pipe;
  PipelineState<S::kValueStages> value_pipe;
  PipelineState<2> decided_pipe;

  Softmax softmax;
  float sums[S::kParts][8 * S::kPartPanels][4];
  float scores[kN][4], kept[2];
  uint32_t weights[S::kKeys / 16][4];
  int stage;  // of the keys that scores come from
  const auto start_next_scores = [&] {
    const auto now = key_pipe.take();
    stage = now.stage;
    wait_barrier(&shared.keys_here[stage], now.parity);
    wgmma_fence();
    start_scores<kD>(scores, queries, key_tiles + stage * S::kTileBytes);
  };
  const auto start_next_sums = [&] {
    const auto [last, parity] = value_pipe.take();
    wait_barrier(&shared.values_here[last], parity);
    wgmma_fence();
    start_sums<kD>(sums, weights, value_tiles + last * S::kTileBytes);
    return last;
  };
  const auto hold_sums = [&] {
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) hold(sums[part]);
  };
  const auto take_weights = [&] {
#pragma unroll
    for (int k = 0; k < S::kKeys / 16; ++k)
      as_operand(weights[k], scores[2 * k], scores[2 * k + 1]);
  };
  // The next tile, while the weights of the one before meet their values. `finish` masks scores.
  const auto attend_tile = [&](const auto& finish) {
    start_next_scores();
    const int last = start_next_sums();
    wgmma_wait<1>();
    hold(scores);
    finish();
    release(&shared.keys_used[stage]);
    take_scores(softmax, scores, factor, kept);
    finish_weights(softmax);
    wgmma_wait<0>();
    hold_sums();
    release(&shared.values_used[last]);
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) scale_sums(sums[part], kept);
    take_weights();
  };

  for (uint32_t number = 0;; ++number) {
    wait_barrier(&shared.item_here, number & 1);
    const Item& item = shared.items[number % 2];
    if (item.head < 0) return;
    int n_opened = 0;  // members, by this lane's rows and columns

    // 1. Near keys, then exact pages where there are no means.
    {
      const LaneRows rows(view, item, warp);
      // Near keys [seen_begin, seen_end) are seen by all rows of the warp.
      const int seen_begin = __shfl_sync(0xffffffffu, rows.border[1], 31);
      const int seen_end =
          view.causal ? __shfl_sync(0xffffffffu, rows.position[0], 0) + 1 : item.near_end;
      const int near_tiles = max(S::tiles_of(item.near_end - item.near_begin), 1);
      const int n_tiles =
          near_tiles + (item.has_means() ? 0 : S::tiles_of(item.exact_pages * kPage));
      const auto finish = [&](int tile) {
        Visible visible{};
        if (tile < near_tiles) {
          const int first_key = item.near_begin + tile * S::kKeys;
          if (first_key >= seen_begin && first_key + S::kKeys <= seen_end) return;
          visible = visible_near(view, item, rows, first_key);
        } else {
          visible.end[0] = item.exact_pages * kPage - (tile - near_tiles) * S::kKeys;
          if (visible.end[0] >= S::kKeys) return;
          visible.end[1] = visible.end[0];
        }
        mask_columns(scores, visible);
      };
      softmax = {};
#pragma unroll
      for (int part = 0; part < S::kParts; ++part)
#pragma unroll
        for (auto& column : sums[part]) column[0] = column[1] = column[2] = column[3] = 0;
      start_next_scores();
      wgmma_wait<0>();
      hold(scores);
      finish(0);
      release(&shared.keys_used[stage]);
      take_scores(softmax, scores, factor, kept);
      take_weights();
      for (int tile = 1; tile < n_tiles; ++tile) attend_tile([&] { finish(tile); });
      if (item.dense && threadIdx.x % 4 == 0)
        for (int half = 0; half < 2; ++half)
          if (rows.in_pass[half])
            n_opened += max(static_cast<int>(view.border(rows.position[half]) - view.sinks), 0);
    }

    if (item.has_means()) {
      const LaneRows rows(view, item, warp);
      float norm2[2];
      query_norms<kD>(norm2, memory, warp);
      RowEstimates estimates(view, norm2);
      const auto mask_tile = [&](int page) {
        const int end[2] = {rows.border[0] / kPage - page, rows.border[1] / kPage - page};
        mask_means(scores, end, item.sinks_at() - page, item.means_end() - page, log_page);
      };
      const auto all_visible = [&](int page) {
        return item.one_border && page + S::kKeys <= item.end_page;
      };

      // 2. The normaliser.
      LogSum normaliser(softmax, factor);
      for (int page = item.first_page; page < item.means_end(); page += S::kKeys) {
        start_next_scores();
        wgmma_wait<0>();
        hold(scores);
        if (!all_visible(page)) mask_tile(page);
        as_masses(scores, estimates, shared.terms[stage]);
        release(&shared.keys_used[stage]);
        normaliser.add(scores);
      }
      estimates.set_normaliser(normaliser);

      // 3. Decisions, and the means of what stays closed.
      for (int page = item.first_page; page < item.means_end(); page += S::kKeys)
        attend_tile([&] {
          const auto [place, parity] = decided_pipe.take();
          const bool all = all_visible(page);
          if (!all) mask_tile(page);
          uint32_t opened[2];
          ask(opened, scores, estimates, shared.terms[stage], item.delta);
          for (int half = 0; half < 2; ++half) {
            if (!rows.in_pass[half]) opened[half] = 0;
            if (!all) opened[half] &= columns_below<kN>(rows.border[half] / kPage - page);
          }
          spread(opened, tile_rows, warp, shared.asked[place]);
          wait_barrier(&shared.decided_used[place], parity ^ 1);
          store_opened<kN>(shared.decided[place][warp], opened, tile_rows);
          release(&shared.decided_here[place]);
          for (int half = 0; half < 2; ++half)
            if (rows.in_pass[half]) n_opened += kPage * __popc(opened[half]);
          close_means(scores, opened, log_page);
        });

      // 4. Members of opened pages.
      for (int page = 0; wait_listed(&shared.listed, number, page + 1) > page; page += S::kPages)
        attend_tile([&] { mask_members(scores, shared.members[stage][warp]); });
    }

    count_opened(view, item, warp, n_opened);
    release(&shared.item_used);
    const int last = start_next_sums();
    add_lanes(softmax);
    wgmma_wait<0>();
    hold_sums();
    release(&shared.values_used[last]);
#pragma unroll
    for (int part = 0; part < S::kParts; ++part)
      store_rows(view, item.head, LaneRows(view, item, warp), part * S::kPartPanels * 64,
                 sums[part], softmax.total);
  }
}

template <int kD>
__global__ void __launch_bounds__(kThreads, 1)
    refine_hopper(const __grid_constant__ RefineView view, const __grid_constant__ Maps maps,
                  ListScratch lists, int32_t* n_drawn) {
  extern __shared__ unsigned char dynamic[];
  __shared__ Shared<kD> shared;
  const uint32_t offset = (1024 - shared_address(dynamic) % 1024) % 1024;
  unsigned char* memory = dynamic + offset;
  if (threadIdx.x == 0) make_barriers(shared);
  __syncthreads();
  if (threadIdx.x < 128) {
    decrease_registers<kProducerRegisters>();
    const int warp = uniform_warp();
    const PageList list = lists.of_block();
    if (warp == 0) bring_keys(view, maps, memory, shared, list, n_drawn);
    if (warp == 1) bring_values(view, maps, memory, shared, list);
    if (warp == 2) list_pages(shared, list);
  } else {
    increase_registers<kConsumerRegisters>();
    attend_items(view, memory, shared);
  }
}

template <int kD>
void launch(const std::shared_ptr<Context>& context, const RefineView& view) {
  using S = Sizes<kD>;
  static_assert(S::kBytes + sizeof(Shared<kD>) <= 227 * 1024);  // what a block may have
  constexpr int64_t kSize = 2;                                  // bytes of a number
  // Tensors end where they are filled: what lies behind may be anything, and is read as zeros.
  // Strides of heads and rows are in elements.
  const auto map = [&](const std::byte* data, int64_t n, int64_t head_stride, int64_t stride,
                       int box) {
    return make_map({data,
                     {view.head_dim, std::max<int64_t>(n, 1), view.n_kv_heads},
                     {stride * kSize, head_stride * kSize},
                     {box, 1}});
  };
  const int64_t settled = view.last_border(), d = view.head_dim;
  const CacheView& cache = view.cache;
  const RecentView& recent = view.recent;
  const auto tile_maps = [&](const std::byte* near, int64_t near_stride, const std::byte* rows,
                             const std::byte* means) {
    return TileMaps{map(near, recent.n, recent.head_stride, near_stride, S::kKeys),
                    map(rows, settled, cache.capacity * d, d, kPage),
                    map(means, settled / kPage, cache.n_pages * d, d, S::kKeys),
                    map(means, settled / kPage, cache.n_pages * d, d, kPage)};
  };
  const Maps maps{make_map({view.queries,
                            {view.head_dim, view.n_heads, view.n_tokens},
                            {d * kSize, view.query_stride * kSize},
                            {1, kItemRows}}),
                  tile_maps(recent.keys, recent.key_stride, cache.keys, cache.mean_keys),
                  tile_maps(recent.values, recent.value_stride, cache.values, cache.mean_values)};
  const int blocks = std::min(n_items(view), context->multiprocessors());
  const ListMemory lists(context, view, blocks);
  check(cudaFuncSetAttribute(refine_hopper<kD>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             S::kBytes),
        "attention's shared memory");
  refine_hopper<kD><<<static_cast<unsigned>(blocks), kThreads, S::kBytes, context->stream()>>>(
      view, maps, lists.scratch(), context->zeros(1));
  check_launch("refine_hopper");
}

}  // namespace

void attend_hopper(const std::shared_ptr<Context>& context, const RefineView& view) {
  check_tiles(view);
  if (view.head_dim <= 64) return launch<64>(context, view);
  if (view.head_dim <= 128) return launch<128>(context, view);
  launch<256>(context, view);
}

}  // namespace sluice::impl::cuda::refine
