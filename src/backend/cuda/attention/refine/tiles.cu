// Refined attention on Ampere, prefill: mma.sync and cp.async. Thread blocks stay for many work
// items, 128 queries of one head each, 16 to a warp. One running softmax goes over near keys and
// exact pages, over means, twice as in hopper.cu, and over members of opened pages. The next tile
// is copied while one is worked on.

#include <algorithm>

#include "backend/cuda/attention/refine/decide.cuh"
#include "backend/cuda/attention/refine/list.cuh"
#include "backend/cuda/attention/refine/output.cuh"
#include "backend/cuda/attention/refine/tiles.cuh"

namespace sluice::impl::cuda::refine {
namespace {

struct Shared {
  PageStats<kKeys> stats[2];                            // of a tile of means
  alignas(16) uint16_t members[2][kItemWarps][kPages];  // rows that open pages of a tile
  alignas(16) uint16_t decided[2][kItemWarps][kKeys];   // the same of a tile of means
  uint32_t asked[2][kItemWarps][4];                     // of spread()
  int n_listed;
};

// Keys or values (n_kv_heads, …, head_dim), strides in elements. null: not asked for.
struct RowsOf {
  const std::byte* data;
  int64_t head_stride, stride;
};

template <int kD>
__device__ void attend_item(const RefineView& view, const Item& item, __nv_bfloat16* memory,
                            Shared& shared, const PageList& list) {
  using S = TileSizes<kD>;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto head_dim = static_cast<int>(view.head_dim);
  const auto tile_rows = static_cast<int>(view.tile);
  const float factor = view.scale * kLog2E, log_page = kLog2Page / factor;
  const LaneRows rows(view, item, warp);

  Queries<kD> queries;
  __nv_bfloat16* query_tile = S::kQueriesStay ? memory + S::kBuffers : memory;
  queries.tile = query_tile;
  copy_rows<kD>(query_tile, view.queries, head_dim, kItemRows, [&](int row) -> int64_t {
    const int position = item.begin + row;
    if (position < item.first || position > item.last) return -1;
    return (position - view.first_position) * view.query_stride + item.head * view.head_dim;
  });
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  RowEstimates estimates(view, item.kv_head, [&](int row, int d) {
    return static_cast<float>(query_tile[(warp * 16 + row) * kTileStride<kD> + d]);
  });
  if constexpr (!S::kQueriesStay) {
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) load_query<kD>(queries.columns[k], query_tile, k * 16);
    __syncthreads();
  }

  Softmax softmax;
  float sums[kD / 8][4] = {};
  float scores[kN][4];
  const auto keys_of = [&](int stage) { return memory + 2 * stage * S::kTile; };
  const auto values_of = [&](int stage) { return memory + (2 * stage + 1) * S::kTile; };
  // Copies rows row_at(r) of a kv head, of both keys and values.
  const auto bring = [&](int stage, const RowsOf& keys, const RowsOf& values, const auto& row_at) {
    const auto at = [&](const RowsOf& from) {
      return [&](int row) -> int64_t {
        const int r = row_at(row);
        return r < 0 ? -1 : item.kv_head * from.head_stride + r * from.stride;
      };
    };
    copy_rows<kD>(keys_of(stage), keys.data, head_dim, kKeys, at(keys));
    if (values.data != nullptr)
      copy_rows<kD>(values_of(stage), values.data, head_dim, kKeys, at(values));
    commit_copies();
  };
  // Rows of the cache, (n_kv_heads, n, head_dim).
  const auto cached = [&](const std::byte* data, int64_t n) {
    return RowsOf{data, n * view.head_dim, view.head_dim};
  };
  const auto add_weighted = [&](int stage) {
    float kept[2];
    take_scores(softmax, scores, factor, kept);
    scale_sums(sums, kept);
    add_values<kD>(sums, scores, values_of(stage), 0);
  };

  // 1. Near keys, then exact pages.
  const int n_near = item.near_end - item.near_begin, n_exact = item.exact_pages * kPage;
  for_tiles<S::kStages>(
      (n_near + kKeys - 1) / kKeys,
      [&](int tile, int stage) {
        const int first = item.near_begin - static_cast<int>(view.recent.first);
        const RecentView& recent = view.recent;
        bring(stage, {recent.keys, recent.head_stride, recent.key_stride},
              {recent.values, recent.head_stride, recent.value_stride}, [&](int row) {
                const int at = tile * kKeys + row;
                return at < n_near ? first + at : -1;
              });
      },
      [&](int tile, int stage) {
        queries.scores(scores, keys_of(stage));
        mask_columns(scores, visible_near(view, item, rows, item.near_begin + tile * kKeys));
        add_weighted(stage);
      });
  const auto bring_cache = [&](int stage, const auto& row_at) {
    bring(stage, cached(view.cache.keys, view.cache.capacity),
          cached(view.cache.values, view.cache.capacity), row_at);
  };
  for_tiles<S::kStages>((n_exact + kKeys - 1) / kKeys,
                        [&](int tile, int stage) {
                          bring_cache(stage, [&](int row) {
                            const int at = tile * kKeys + row;
                            return at < n_exact ? at : -1;
                          });
                        },
                        [&](int tile, int stage) {
                          const int end = n_exact - tile * kKeys;
                          queries.scores(scores, keys_of(stage));
                          mask_columns(scores, Visible{{0, 0}, {end, end}, 0});
                          add_weighted(stage);
                        });
  int n_opened = 0;  // members, by this lane's rows and columns
  if (item.dense && lane % 4 == 0)
    for (int half = 0; half < 2; ++half)
      if (rows.in_pass[half])
        n_opened += max(static_cast<int>(view.border(rows.position[half]) - view.sinks), 0);

  if (item.first_page < item.end_page) {
    const int n_means = item.end_page - item.first_page;
    const int mean_tiles = (n_means + kKeys - 1) / kKeys;
    const auto bring_means = [&](int tile, int stage, const std::byte* values) {
      const int first = item.first_page + tile * kKeys;
      if (threadIdx.x < kKeys) {
        const auto column = static_cast<int>(threadIdx.x);
        shared.stats[tile % 2].load(view.cache, item.kv_head, column, first + column,
                                    item.end_page);
      }
      bring(stage, cached(view.cache.mean_keys, view.cache.n_pages),
            cached(values, view.cache.n_pages),
            [&](int row) { return first + row < item.end_page ? first + row : -1; });
    };
    const auto visible_means = [&](int tile) {
      const int first = item.first_page + tile * kKeys;
      return Visible{{0, 0}, {rows.border[0] / kPage - first, rows.border[1] / kPage - first}, 0};
    };

    // 2. The normaliser.
    LogSum normaliser(softmax, factor);
    for_tiles<S::kStages>(
        mean_tiles, [&](int tile, int stage) { bring_means(tile, stage, nullptr); },
        [&](int tile, int stage) {
          queries.scores(scores, keys_of(stage));
          mask_columns(scores, visible_means(tile));
          as_masses(scores, estimates, shared.stats[tile % 2]);
          normaliser.add(scores);
        });
    estimates.set_normaliser(normaliser);

    // 3. Decisions, and the means of what stays closed. Warp 0 lists what the tile before opened.
    int n_listed = 0;
    const auto append = [&](int tile) {
      if (warp == 0)
        n_listed =
            append_pages(list, n_listed, shared.decided[tile % 2], item.first_page + tile * kKeys);
    };
    for_tiles<S::kStages>(
        mean_tiles, [&](int tile, int stage) { bring_means(tile, stage, view.cache.mean_values); },
        [&](int tile, int stage) {
          if (tile > 0) append(tile - 1);
          queries.scores(scores, keys_of(stage));
          const Visible visible = visible_means(tile);
          mask_columns(scores, visible);
          uint32_t opened[2];
          ask(opened, scores, estimates, shared.stats[tile % 2], item.delta);
          for (int half = 0; half < 2; ++half)
            opened[half] &= rows.in_pass[half] ? columns_below<kN>(visible.end[half]) : 0u;
          spread(opened, tile_rows, warp, shared.asked[tile % 2]);
          store_opened<kN>(shared.decided[tile % 2][warp], opened, tile_rows);
          for (int half = 0; half < 2; ++half)
            if (rows.in_pass[half]) n_opened += kPage * __popc(opened[half]);
          close_means(scores, opened, log_page);
          add_weighted(stage);
        });
    append(mean_tiles - 1);
    if (threadIdx.x == 0) shared.n_listed = n_listed;
    __syncthreads();

    // 4. Members of opened pages.
    n_listed = shared.n_listed;
    for_tiles<S::kStages>(
        (n_listed + kPages - 1) / kPages,
        [&](int tile, int stage) {
          if (threadIdx.x < kPages * kItemWarps) {
            const int page = static_cast<int>(threadIdx.x) / kItemWarps,
                      of = threadIdx.x % kItemWarps;
            const int at = tile * kPages + page;
            shared.members[tile % 2][of][page] =
                at < n_listed ? reinterpret_cast<const uint16_t*>(list.rows + at)[of] : 0;
          }
          bring_cache(stage, [&](int row) {
            const int at = tile * kPages + row / kPage;
            return at < n_listed ? list.pages[at] * kPage + row % kPage : -1;
          });
        },
        [&](int tile, int stage) {
          queries.scores(scores, keys_of(stage));
          mask_members(scores, shared.members[tile % 2][warp]);
          add_weighted(stage);
        });
  }
  count_opened(view, item, warp, n_opened);
  add_lanes(softmax);
  store_rows(view, item.head, rows, 0, sums, softmax.total);
  __syncthreads();  // memory is free for the next item
}

template <int kD>
__global__ void __launch_bounds__(kThreads, 1)
    refine_tiles(const __grid_constant__ RefineView view, ListScratch lists) {
  extern __shared__ __align__(16) __nv_bfloat16 memory[];
  __shared__ Shared shared;
  const PageList list = lists.of_block();
  const int end = n_items(view);
  for (int index = static_cast<int>(blockIdx.x); index < end; index += static_cast<int>(gridDim.x))
    attend_item<kD>(view, item_at(view, index), memory, shared, list);
}

template <int kD>
void launch(const std::shared_ptr<Context>& context, const RefineView& view) {
  constexpr int kBytes = TileSizes<kD>::kBytes;
  check(cudaFuncSetAttribute(refine_tiles<kD>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "attention's shared memory");
  int resident = 0;  // blocks of a multiprocessor
  check(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, refine_tiles<kD>, kThreads, kBytes),
      "attention's occupancy");
  const int blocks = std::min(n_items(view), context->multiprocessors() * std::max(resident, 1));
  const ListMemory lists(context, view, blocks);
  refine_tiles<kD><<<static_cast<unsigned>(blocks), kThreads, kBytes, context->stream()>>>(
      view, lists.scratch());
  check_launch("refine_tiles");
}

}  // namespace

void attend_tiles(const std::shared_ptr<Context>& context, const RefineView& view) {
  check_tiles(view);
  if (view.head_dim <= 64) return launch<64>(context, view);
  if (view.head_dim <= 96) return launch<96>(context, view);
  if (view.head_dim <= 128) return launch<128>(context, view);
  launch<256>(context, view);
}

}  // namespace sluice::impl::cuda::refine
