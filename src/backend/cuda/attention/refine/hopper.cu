// Refined attention on Hopper, prefill: wgmma and TMA. Thread blocks stay and draw work items, 128
// queries of one head each, a consumer warpgroup to 64 of them (hopper_consumer.cuh), and warps of
// a third that feed them (hopper_pipeline.cuh). Compiled for compute capability 9.0 alone.

#include <algorithm>

#include "backend/cuda/attention/refine/hopper_consumer.cuh"
#include "backend/cuda/runtime/tensor_map.h"

namespace sluice::impl::cuda::refine {
namespace {

using namespace hopper;
using refine::Sizes;

constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

template <int kD>
__device__ void attend_items(const RefineView& view, unsigned char* memory, Shared<kD>& shared) {
  Consumer<kD> consumer(view, memory, shared, uniform_warp() - 4);
  for (uint32_t number = 0;; ++number) {
    wait_barrier(&shared.item_here, number & 1);
    const Item& item = shared.items[number % 2];
    if (item.head < 0) return;
    attend_near(consumer, view, item);
    if (item.has_means()) attend_means(consumer, view, item, number);
    count_opened(view, item, consumer.warp, consumer.n_opened);
    arrive(&shared.item_used);
    store_item(consumer, view, item);
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
