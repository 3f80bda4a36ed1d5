// cascade-cover in a basis (BasisView): products of coordinates, reduced to bits before they leave
// the registers.

#include "backend/cuda/selection/cover/bits.cuh"
#include "backend/cuda/selection/cover/items.cuh"

namespace sluice::impl::cuda::selection {
namespace {

using namespace cover;

// Of the item at hand, for four warps that multiply: such tiles are soon done, so that the others
// should not wait for them.
struct GroupShared {
  __align__(8) float rest[kColumns];
  float row_rest[kRows / 2];
  int rank[kRows / 2];
};
struct CoordinateShared {
  Shared items;
  GroupShared groups[2];
};

__device__ int my_group() { return static_cast<int>(threadIdx.x) / 128 - 1; }
__device__ void sync_group() {
  asm volatile("bar.sync %0, 128;\n" ::"r"(4 + my_group()) : "memory");
}

template <int kList>
struct CoordinateWork : Items<kList> {
  using Base = Items<kList>;
  using Base::view;
  CoordinateShared& memory;
  bool used;
  float least, sure;  // for a cosine that may be at the first threshold, or is

  __device__ CoordinateWork(const CoverView& of, const Maps& with, CoordinateShared& shared)
      : Base(of, with, shared.items), memory(shared), used(in_basis(of.basis)) {
    least = __double2float_rd(of.chunk.thresholds[0] - of.basis.error);
    sure = __double2float_ru(of.chunk.thresholds[0] + of.basis.error);
    Base::rows = &with.rows;
    Base::of_columns = view.basis.column_rest;
    Base::of_listed = view.whole ? view.basis.rest : view.basis.listed_rest;
    Base::of_rows = view.basis.rest;
    if (!used || blockIdx.x != 0 || threadIdx.x != 0) return;
    view.basis.progress->n_items[kList] = Base::n_items();
  }
  // Too short to be divided.
  __device__ GramParts parts() const { return {}; }
  __device__ int n_items() const { return used ? Base::n_items() : 0; }
  __device__ void begin(const Tile& tile) const;
  __device__ const GroupShared& mine() const { return memory.groups[my_group()]; }
  template <typename Products>
  __device__ void take(const Tile& tile, const Products& products, int row) const;
  template <typename Products>
  __device__ LaneBits find(const Products& products, int set, const float (&rest)[2]) const;
  using Bits = uint32_t[2][2];  // of a lane's rows and the halves of a tile
  __device__ void count(const Tile& tile, const int (&limit)[2], const Bits& any,
                        const Bits& unsure) const;
};

template <int kList>
__device__ void CoordinateWork<kList>::begin(const Tile& tile) const {
  GroupShared& to = memory.groups[my_group()];
  const int i = static_cast<int>(threadIdx.x) % 128, n_columns = Base::columns_from(tile);
  wait_words();
  sync_group();  // those of the last item are read
  const float* from = tile.kind == Base::kKeptColumns ? Base::of_columns : Base::of_listed;
#pragma unroll
  for (int c = i; c < kColumns; c += 128)
    bring_word(&to.rest[c], from + (c < n_columns ? tile.column + c : 0), c < n_columns);
  const int row = i % 64;
  const int64_t at = tile.row + my_group() * 64 + row;
  const bool is_row = at < view.chunk.n;
  if (i < 64)
    bring_word(&to.row_rest[row], Base::of_rows + (is_row ? at : 0), is_row);
  else
    bring_word(&to.rank[row], view.lists[kList].rank + (is_row ? at : 0), is_row);
}

// Which columns may be at the threshold, and which are in any case. Of most pieces none may: their
// largest cosine tells.
template <int kList>
template <typename Products>
__device__ LaneBits CoordinateWork<kList>::find(const Products& products, int set,
                                                const float (&rest)[2]) const {
  constexpr int kTogether = 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const float* columns = mine().rest + 2 * t;
  const auto limits = [&] {
    const double threshold = view.chunk.thresholds[set], error = view.basis.error;
    return set == 0 ? make_float2(least, sure)
                    : make_float2(__double2float_rd(threshold - error),
                                  __double2float_ru(threshold + error));
  }();
  LaneBits bits;
#pragma unroll
  for (int first = 0; first < 32; first += kTogether) {
    asm volatile("" ::: "memory");  // rests are read when they are needed
    float2 column[kTogether];
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      column[i] = *reinterpret_cast<const float2*>(columns + (first + i) * 8);
      const float4 found = products(first + i);
      most = fmaxf(most,
                   fmaxf(fmaf(rest[0], column[i].x, found.x), fmaf(rest[0], column[i].y, found.y)));
      most = fmaxf(most,
                   fmaxf(fmaf(rest[1], column[i].x, found.z), fmaf(rest[1], column[i].y, found.w)));
    }
    if (!(most >= limits.x)) continue;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int n = first + i;
      const float4 found = products(n);
      const uint32_t bit = 1u << n % 16 * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float x = half == 0 ? found.x : found.z, y = half == 0 ? found.y : found.w;
        if (fmaf(rest[half], column[i].x, x) >= limits.x) bits.may[half][n / 16] |= bit;
        if (fmaf(rest[half], column[i].y, y) >= limits.x) bits.may[half][n / 16] |= bit << 1;
        if (fmaf(-rest[half], column[i].x, x) >= limits.y) bits.must[half][n / 16] |= bit;
        if (fmaf(-rest[half], column[i].y, y) >= limits.y) bits.must[half][n / 16] |= bit << 1;
      }
    }
  }
  return bits;
}

template <int kList>
template <typename Products>
__device__ void CoordinateWork<kList>::take(const Tile& tile, const Products& products,
                                            int row) const {
  const ChunkView& chunk = view.chunk;
  const int t = static_cast<int>(threadIdx.x) % 4, number = Base::bits_number(tile);
  wait_words();
  sync_group();
  float rest[2];
  int limit[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int in_group = row % 64 + 8 * half;
    rest[half] = mine().row_rest[in_group];
    limit[half] = Base::limit_of(tile, row + 8 * half, mine().rank[in_group]);
  }
  Bits any = {}, unsure = {};  // in a set
  for (int set = 0; set < chunk.n_sets; ++set) {
    if (chunk.thresholds[set] <= 0) continue;
    LaneBits bits = find(products, set, rest);
    bits.keep_before(limit);
    int n_open = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      any[i / 2][i % 2] |= bits.may[i / 2][i % 2];
      unsure[i / 2][i % 2] |= bits.may[i / 2][i % 2] & ~bits.must[i / 2][i % 2];
      n_open += __popc(unsure[i / 2][i % 2]);
    }
    // What is multiplied again is not written.
    if (static_cast<int>(__reduce_add_sync(kAllLanes, static_cast<unsigned>(n_open))) >
        kMostOpenPairs)
      continue;
    put_bits(
        view, {set * chunk.n + tile.row + row, number}, bits,
        [&] { return CosineLevels(chunk.thresholds[set], view.basis.error); },
        [&](int half, int n) {  // how near they may be
          const float2 column = *reinterpret_cast<const float2*>(mine().rest + n * 8 + 2 * t);
          const float4 found = products(n);
          return make_float2(fmaf(rest[half], column.x, half == 0 ? found.x : found.z),
                             fmaf(rest[half], column.y, half == 0 ? found.y : found.w));
        });
  }
  count(tile, limit, any, unsure);
}

// Pairs that are below all thresholds, and those that are left open. The warp that finds one too
// many has the tiles multiplied again, and so has one with a row that is open to many columns.
template <int kList>
__device__ void CoordinateWork<kList>::count(const Tile& tile, const int (&limit)[2],
                                             const Bits& any, const Bits& unsure) const {
  const auto sum = [](int n) {
    return static_cast<int>(__reduce_add_sync(kAllLanes, static_cast<unsigned>(n)));
  };
  int of_row[2], n_any = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    of_row[half] = __popc(unsure[half][0]) + __popc(unsure[half][1]);
    n_any += __popc(any[half][0]) + __popc(any[half][1]);
  }
  const int below = Base::pairs_of(tile, limit) - sum(n_any);
  int n_open = sum(of_row[0] + of_row[1]);
  for (int step = 1; step < 4; step *= 2)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      of_row[half] += __shfl_xor_sync(kAllLanes, of_row[half], step);
  if (__any_sync(kAllLanes, max(of_row[0], of_row[1]) > kMostOpenOfRow))
    n_open += kMostOpenPairs + 1;
  if (threadIdx.x % 32 != 0) return;
  const BasisView& basis = view.basis;
  const int item = Base::item_of(tile);
  if (below > 0) atomicAdd(basis.below + item, below);
  if (n_open == 0) return;
  const int before = atomicAdd(basis.open + item, n_open);
  if (before > kMostOpenPairs || before + n_open <= kMostOpenPairs) return;
  int32_t* again = basis.again + int64_t{kList} * Base::pairs * view.tiles;
  again[atomicAdd(&basis.progress->n_again[kList], 1)] = item;
}

template <int kList>
__global__ void __cluster_dims__(gram::kBlocks, 1, 1) __launch_bounds__(gram::kThreads, 1)
    cover_coordinates(const __grid_constant__ CoverView view, const __grid_constant__ Maps maps) {
  multiply_items<CoordinateWork<kList>, CoordinateShared>(view, maps, view.basis.width);
}

}  // namespace

void multiply_coordinates(Context& context, const CoverView& view, int list) {
  const ChunkView& chunk = view.chunk;
  const BasisView& basis = view.basis;
  const Maps maps = maps_of(chunk, {basis.rows, basis.columns, basis.listed, basis.width});
  launch_items(context, "cover_coordinates",
               list == 0 ? cover_coordinates<0> : cover_coordinates<1>, view, maps);
}

}  // namespace sluice::impl::cuda::selection
