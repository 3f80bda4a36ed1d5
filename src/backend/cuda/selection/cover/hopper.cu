// Products of cascade-cover: a chunk's tokens with kept columns and with listed tokens before them,
// reduced to bits before they leave the registers.

#include "backend/cuda/selection/cover/bits.cuh"
#include "backend/cuda/selection/cover/items.cuh"

namespace sluice::impl::cuda::selection {
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
    LaneBits bits;
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
        if (x >= least) bits.may[half][n / 16] |= first;
        if (y >= least) bits.may[half][n / 16] |= second;
        if (x >= sure) bits.must[half][n / 16] |= first;
        if (y >= sure) bits.must[half][n / 16] |= second;
      }
    }
    bits.keep_before(limit);
    put_bits(
        view,
        {set * chunk.n + tile.row + row,
         Base::bits_number(tile),
         {replaces && limit[0] > 0, replaces && limit[1] > 0}},
        bits, [&] { return CosineLevels(threshold, kAgain ? level_slack(view) : chunk.slack); },
        [&](int half, int n) {
          const float2 column = *reinterpret_cast<const float2*>(shared.scale + n * 8 + 2 * t);
          const float4 found = products(n);
          return make_float2((half == 0 ? found.x : found.z) * column.x * scale[half],
                             (half == 0 ? found.y : found.w) * column.y * scale[half]);
        });
  }
}

template <int kList, bool kAgain>
__global__ void __cluster_dims__(gram::kBlocks, 1, 1) __launch_bounds__(gram::kThreads, 1)
    cover_gram(const __grid_constant__ CoverView view, const __grid_constant__ Maps maps) {
  multiply_items<CoverWork<kList, kAgain>, Shared>(view, maps, view.chunk.padded);
}

template <bool kAgain>
void launch(Context& context, const CoverView& view, int list) {
  const ChunkView& chunk = view.chunk;
  Maps maps = maps_of(chunk, {chunk.rows.prepared, chunk.kept.prepared, view.listed, chunk.padded});
  maps.given = given_map(chunk);
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

}  // namespace sluice::impl::cuda::selection
