// Products of cascade-cover: a chunk's tokens with kept columns and with listed tokens before them,
// reduced to bits before they leave the registers.

#include "backend/cuda/runtime/dependent_launch.cuh"
#include "backend/cuda/selection/cover/items.cuh"

namespace sluice::impl::cuda {
namespace {

using namespace cover;

// Unless the basis is to be used in any case: where half of the tiles are multiplied twice, it
// costs more than it saves.
__device__ void give_up_where_useless(const BasisView& basis) {
  BasisProgress& progress = *basis.progress;
  const int again = progress.n_again[0] + progress.n_again[1];
  if (!basis.always && 2 * again > progress.n_items[0] + progress.n_items[1]) progress.given_up = 1;
}

// kAgain: behind products of coordinates, tiles that these left open; all where there were none.
template <int kList, bool kAgain>
struct CoverWork : Items<kList> {
  using Base = Items<kList>;
  using Base::view, Base::shared, Base::maps;
  const int32_t* again = nullptr;
  int n_again = 0;

  __device__ CoverWork(const CoverView& of, const Maps& with, Shared& memory)
      : Base(of, with, memory) {
    if (!kAgain || view.basis.progress->used == 0) return;
    again = view.basis.again + int64_t{kList} * Base::pairs * view.tiles;
    n_again = view.basis.progress->n_again[kList];
    if ((kList == 1 || view.whole) && blockIdx.x == 0 && threadIdx.x == 0)
      give_up_where_useless(view.basis);
  }

  __device__ const GramParts& parts() const { return view.chunk.parts; }
  __device__ int n_items() const { return kAgain && again != nullptr ? n_again : Base::n_items(); }
  __device__ Tile at(int i) {
    return kAgain && again != nullptr ? Base::tile_of(again[i]) : Base::at(i);
  }
  template <typename Products>
  __device__ void take(const Tile& tile, const Products& products, int row) const;
};

template <int kList, bool kAgain>
template <typename Products>
__device__ void CoverWork<kList, kAgain>::take(const Tile& tile, const Products& products,
                                               int row) const {
  const ChunkView& chunk = view.chunk;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const bool replaces = kAgain && again != nullptr;  // bits that are there
  wait_words();
  gram::sync_multipliers();
  float scale[2];
  int limit[2];  // columns of this tile that are before the token
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    scale[half] = shared.row_scale[row + 8 * half];
    limit[half] = Base::limit_of(tile, row + 8 * half, shared.rank[row + 8 * half]);
  }
  for (int set = 0; set < chunk.n_sets; ++set) {
    const double threshold = chunk.thresholds[set];
    if (threshold <= 0) continue;
    const float least = __double2float_rd(threshold - chunk.slack);
    const float sure = __double2float_ru(threshold + chunk.slack);
    uint32_t may[2][2] = {}, must[2][2] = {};
#pragma unroll
    for (int n = 0; n < 32; ++n) {
      // Scales are read when they are needed: there are no registers for all of them.
      if (n % Products::kTogether == 0) asm volatile("" ::: "memory");
      const float2 column = *reinterpret_cast<const float2*>(shared.scale + n * 8 + 2 * t);
      const float4 found = products(n);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float x = (half == 0 ? found.x : found.z) * column.x * scale[half];
        const float y = (half == 0 ? found.y : found.w) * column.y * scale[half];
        const uint32_t first = 1u << n % 16 * 2, second = first << 1;
        if (x >= least) may[half][n / 16] |= first;
        if (y >= least) may[half][n / 16] |= second;
        if (x >= sure) must[half][n / 16] |= first;
        if (y >= sure) must[half][n / 16] |= second;
      }
    }
    const int number = Base::bits_number(tile);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = set * chunk.n + tile.row + row + 8 * half;
      uint32_t some = 0;
#pragma unroll
      for (int word = 0; word < 2; ++word) {
        const uint32_t before = bits_before(limit[half] - 2 * t - 128 * word);
        may[half][word] &= before;
        const uint32_t votes = __ballot_sync(kAllLanes, may[half][word] != 0);
        some |= (votes >> (threadIdx.x % 32 - t) & 15) << 4 * word;
        if (may[half][word] == 0 && (!replaces || limit[half] <= 0)) continue;
        const int64_t piece = (at * view.tiles + number) * kPieces + word * 4 + t;
        view.bits[piece] = make_uint2(may[half][word], must[half][word] & before);
        if (may[half][word] == 0) continue;
        const CosineLevels levels(threshold, kAgain ? level_slack(view) : chunk.slack);
        put_levels(view, levels, word, piece, [&](int n) {
          const float2 column = *reinterpret_cast<const float2*>(shared.scale + n * 8 + 2 * t);
          const float4 found = products(n);
          return make_float2((half == 0 ? found.x : found.z) * column.x * scale[half],
                             (half == 0 ? found.y : found.w) * column.y * scale[half]);
        });
      }
      if (t == 0 && some != 0)
        atomicOr(view.some + at * view.words + number / 4, some << number % 4 * kPieces);
    }
  }
}

template <int kList, bool kAgain>
__global__ void __cluster_dims__(gram::kBlocks, 1, 1) __launch_bounds__(gram::kThreads, 1)
    cover_gram(const __grid_constant__ CoverView view, const __grid_constant__ Maps maps) {
  extern __shared__ unsigned char dynamic[];
  __shared__ gram::Barriers barriers;
  __shared__ Shared shared;
  gram::prepare(barriers, {&maps.given, &maps.rows, &maps.columns, &maps.listed});
  wait_on_dependency();
  launch_dependents();
  CoverWork<kList, kAgain> work(view, maps, shared);
  gram::run(work, view.chunk.padded, dynamic, barriers);
}

template <bool kAgain>
void launch(Context& context, const CoverView& view, int list) {
  const ChunkView& chunk = view.chunk;
  const int64_t padded = chunk.padded;
  const CUtensorMap rows = gram::row_map(chunk.rows.prepared, chunk.n, padded, padded);
  const Maps maps{given_map(chunk), rows,
                  gram::row_map(chunk.kept.prepared, chunk.kept.capacity, padded, padded),
                  gram::row_map(view.listed, chunk.n + 2 * kColumns, padded, padded)};
  launch_items(context, "cover_gram", list == 0 ? cover_gram<0, kAgain> : cover_gram<1, kAgain>,
               view, maps);
}

}  // namespace

void multiply_cover(Context& context, const CoverView& view, int list) {
  launch<false>(context, view, list);
}

void multiply_cover_again(Context& context, const CoverView& view, int list) {
  launch<true>(context, view, list);
}

}  // namespace sluice::impl::cuda
