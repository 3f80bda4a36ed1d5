// Refined attention on Ampere, prefill: mma.sync and cp.async. Thread blocks stay for many work
// items, 128 queries of one head each, 16 to a warp. One running softmax goes over near keys and
// exact pages, over means, twice as in hopper.cu, and over members of opened pages. The next tile
// is copied while one is worked on.

#include <algorithm>

#include "backend/cuda/attention/refine/decide.cuh"
#include "backend/cuda/attention/refine/list.cuh"
#include "backend/cuda/attention/refine/output.cuh"

namespace sluice::cuda::refine {
namespace {

constexpr int kThreads = 32 * kItemWarps;
constexpr int kKeys = 64;  // of a tile
constexpr int kN = kKeys / 8, kPages = kKeys / kPage;

template <int kD>
struct Sizes {
  // Wide queries would not leave enough registers for the sums: they are read again for every tile.
  static constexpr bool kQueriesStay = kD > 128;
  static constexpr int kStages = kD <= 128 ? 2 : 1;
  static constexpr int kTile = kKeys * kTileStride<kD>;  // numbers, of keys or of values
  static constexpr int kQueryTile = kItemRows * kTileStride<kD>;
  static constexpr int kBuffers = 2 * kStages * kTile;
  static constexpr int kBytes =
      2 * (kQueriesStay ? kBuffers + kQueryTile : std::max(kBuffers, kQueryTile));
};

struct Shared {
  alignas(16) float2 terms[2][kKeys];                   // of a tile of means
  alignas(16) uint16_t members[2][kItemWarps][kPages];  // rows that open pages of a tile
  alignas(16) uint16_t decided[2][kItemWarps][kKeys];   // the same of a tile of means
  uint32_t asked[2][kItemWarps][4];                     // of spread()
  int n_listed;
};

// The queries of an item, as left operands of products.
template <int kD>
struct Queries {
  static constexpr bool kStay = Sizes<kD>::kQueriesStay;
  const __nv_bfloat16* tile;
  uint32_t columns[kStay ? 1 : kD / 16][4];

  // Columns [16 k, 16 k + 16).
  __device__ void load(uint32_t (&to)[4], int k) const {
    if constexpr (kStay) {
      load_query<kD>(to, tile, k * 16);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = columns[k][i];
    }
  }
  // |q|^2 of this lane's two rows.
  __device__ void norms(float (&norm2)[2]) const {
    norm2[0] = norm2[1] = 0;
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
      uint32_t query[4];
      load(query, k);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = widened(query[i]);
        norm2[i % 2] = fmaf(pair.x, pair.x, fmaf(pair.y, pair.y, norm2[i % 2]));
      }
    }
#pragma unroll
    for (float& sum : norm2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    }
  }
  __device__ void scores(float (&to)[kN][4], const __nv_bfloat16* keys) const {
#pragma unroll
    for (int n = 0; n < kN; ++n) to[n][0] = to[n][1] = to[n][2] = to[n][3] = 0;
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
      uint32_t query[4];
      load(query, k);
      add_scores<kD>(to, query, keys, 0, k * 16);
    }
  }
};

// Starts copying rows of (…, head_dim) to a tile. row_at(r) is where row r begins, or negative:
// zeros.
template <int kD, typename RowAt>
__device__ void copy_rows(__nv_bfloat16* tile, const std::byte* rows, int head_dim, int n_rows,
                          const RowAt& row_at) {
  constexpr int kChunks = kD / 8;
  const auto* from = reinterpret_cast<const __nv_bfloat16*>(rows);
#pragma unroll 1  // addresses take registers
  for (int i = static_cast<int>(threadIdx.x); i < n_rows * kChunks; i += kThreads) {
    const int row = i / kChunks, column = i % kChunks * 8;
    const int64_t at = row_at(row);
    const bool exists = at >= 0 && column < head_dim;
    copy_async(tile + row * kTileStride<kD> + column, exists ? from + at + column : from, exists);
  }
}

// Calls use(tile, stage) after bring(tile, stage), for tiles [0, n). All threads of the block.
template <int kStages, typename Bring, typename Use>
__device__ void for_tiles(int n, const Bring& bring, const Use& use) {
  if (n > 0) bring(0, 0);
  for (int tile = 0; tile < n; ++tile) {
    wait_copies<0>();
    __syncthreads();
    if (kStages > 1 && tile + 1 < n) bring(tile + 1, (tile + 1) % 2);
    use(tile, tile % kStages);
    if (kStages == 1) {
      __syncthreads();
      if (tile + 1 < n) bring(tile + 1, 0);
    }
  }
  __syncthreads();
}

template <int kD>
__device__ void attend_item(const RefineView& view, const Item& item, __nv_bfloat16* memory,
                            Shared& shared, const PageList& list) {
  using S = Sizes<kD>;
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
  const auto bring = [&](int stage, const std::byte* keys, const std::byte* values,
                         int64_t capacity, const auto& row_at) {
    const auto at = [&](int row) -> int64_t {
      const int r = row_at(row);
      return r < 0 ? -1 : (item.kv_head * capacity + r) * view.head_dim;
    };
    copy_rows<kD>(keys_of(stage), keys, head_dim, kKeys, at);
    if (values != nullptr) copy_rows<kD>(values_of(stage), values, head_dim, kKeys, at);
    commit_copies();
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
        bring(stage, view.recent.keys, view.recent.values, view.recent.n, [&](int row) {
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
    bring(stage, view.cache.keys, view.cache.values, view.cache.capacity, row_at);
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
    float norm2[2];
    queries.norms(norm2);
    RowEstimates estimates(view, norm2);
    const int n_means = item.end_page - item.first_page;
    const int mean_tiles = (n_means + kKeys - 1) / kKeys;
    const auto bring_means = [&](int tile, int stage, const std::byte* values) {
      const int first = item.first_page + tile * kKeys;
      if (threadIdx.x < kKeys) {
        const int page = first + static_cast<int>(threadIdx.x);
        const float2* stats = view.cache.stats + item.kv_head * view.cache.n_pages;
        shared.terms[tile % 2][threadIdx.x] =
            page_terms(view.rule, page < item.end_page ? stats[page] : make_float2(0, 0));
      }
      bring(stage, view.cache.mean_keys, values, view.cache.n_pages,
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
          as_masses(scores, estimates, shared.terms[tile % 2]);
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
          ask(opened, scores, estimates, shared.terms[tile % 2], item.delta);
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
  constexpr int kBytes = Sizes<kD>::kBytes;
  check(cudaFuncSetAttribute(refine_tiles<kD>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "attention's shared memory");
  int resident = 0;  // blocks of a multiprocessor
  check(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, refine_tiles<kD>, kThreads, kBytes),
      "attention's occupancy");
  const int64_t last = view.first_position + view.n_tokens - 1;
  const int64_t n_pages = view.border(last) / kPage;
  const int64_t tiles = last / kItemRows - view.first_position / kItemRows + 1;
  SLUICE_CHECK(tiles * view.n_heads <= INT32_MAX / 2);
  const int64_t blocks = std::min<int64_t>(
      tiles * view.n_heads, int64_t{context->multiprocessors()} * std::max(resident, 1));
  const DeviceArray<int32_t> pages(context, blocks * n_pages);
  const DeviceArray<uint4> rows(context, blocks * n_pages);
  refine_tiles<kD><<<static_cast<unsigned>(blocks), kThreads, kBytes, context->stream()>>>(
      view, ListScratch{pages.data(), rows.data(), n_pages});
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

}  // namespace sluice::cuda::refine
