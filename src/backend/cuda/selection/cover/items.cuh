// The tiles that cascade-cover multiplies on Hopper: pairs of row tiles, 256 tokens, with kept
// columns and with listed tokens before their end. For files compiled for compute capability 9.0
// alone.

#pragma once

#include "backend/cuda/runtime/dependent_launch.cuh"
#include "backend/cuda/selection/common/exact.cuh"
#include "backend/cuda/selection/common/marks.cuh"
#include "backend/cuda/selection/gram/hopper.cuh"

namespace sluice::impl::cuda::selection::cover {

using gram::kColumns, gram::kRows, gram::Tile;

constexpr int kPairRows = gram::kBlocks * kRows, kPairs = kCoverChunk / kPairRows;
static_assert(kPairRows == kItemRows);
constexpr int kGroup = 8;  // pairs of row tiles that meet a column tile while it is in L2

struct Maps {
  CUtensorMap given, rows, columns, listed;
};

struct Shared {
  int listed[kPairs];      // before the end of a pair of row tiles
  int before[kPairs + 1];  // whole tiles of listed columns that the pairs before have
  int halves[kPairs];      // pairs that have half a tile too
  int n_halves;
  // Of the item at hand.
  __align__(8) float scale[kColumns];
  float row_scale[kRows];
  int rank[kRows];
};

// Four bytes to shared memory, without waiting for them; 0 where they do not exist.
__device__ inline void bring_word(void* to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(to)),
               "l"(from), "r"(exists ? 4 : 0)
               : "memory");
}

__device__ inline void wait_words() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

// kList 0: pairs of row tiles x kept columns, then the first list as far as it is before a pair's
// end, pair by pair. kList 1: the second list alone. Half tiles of a list come last, when there may
// not be an item for everyone.
template <int kList>
struct Items {
  enum Kind { kKeptColumns, kListed };
  const CoverView& view;
  const Maps& maps;
  Shared& shared;
  const CUtensorMap* rows;
  // What begin brings of a tile's columns and rows: scales, or norms of what coordinates leave out.
  const float *of_columns, *of_listed, *of_rows;
  int pairs, n_columns, n_kept, listed_tile, bits_tile;
  int cursor = 0;  // the pair of the last item of a list

  __device__ Items(const CoverView& of, const Maps& with, Shared& memory)
      : view(of), maps(with), shared(memory) {
    const ChunkView& chunk = view.chunk;
    rows = as_given(chunk) ? &maps.given : &maps.rows;
    of_columns = chunk.kept.scale;
    of_listed = view.whole ? chunk.rows.scale : view.listed_scale;
    of_rows = chunk.rows.scale;
    pairs = static_cast<int>((chunk.n + kPairRows - 1) / kPairRows);
    n_columns = *chunk.kept.n;
    n_kept = kList == 0 ? pairs * tiles_of(n_columns) : 0;
    listed_tile = kList == 0 ? 0 : tiles_of(view.lists[0].rank[chunk.n]);
    bits_tile = tiles_of(n_columns) + listed_tile;
    const auto i = static_cast<int>(threadIdx.x);
    if (i < pairs)
      shared.listed[i] = view.lists[kList].rank[min(chunk.n, int64_t{i + 1} * kPairRows)];
    __syncthreads();
    if (i < 32) order_tiles(i);
    __syncthreads();
  }

  // By a warp, two pairs to a lane.
  __device__ void order_tiles(int lane) const {
    static_assert(kPairs == 64);
    int full[2];
    uint32_t halves[2];
    for (int k = 0; k < 2; ++k) {
      const int n = 2 * lane + k < pairs ? shared.listed[2 * lane + k] : 0;
      const bool half = n % kColumns > 0 && n % kColumns <= 128;
      full[k] = tiles_of(n) - (half ? 1 : 0);
      halves[k] = __ballot_sync(kAllLanes, half);
    }
    int upto = full[0] + full[1];
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, upto, step);
      if (lane >= step) upto += other;
    }
    shared.before[2 * lane] = upto - full[1] - full[0];
    shared.before[2 * lane + 1] = upto - full[1];
    if (lane == 31) shared.before[kPairs] = upto;
    const uint32_t earlier = (1u << lane) - 1;
    int at = __popc(halves[0] & earlier) + __popc(halves[1] & earlier);
    for (int k = 0; k < 2; ++k)
      if ((halves[k] >> lane & 1) != 0) shared.halves[at++] = 2 * lane + k;
    if (lane == 31) shared.n_halves = __popc(halves[0]) + __popc(halves[1]);
  }

  __device__ const CUtensorMap* listed() const { return view.whole ? rows : &maps.listed; }
  __device__ int n_items() const { return n_kept + shared.before[pairs] + shared.n_halves; }

  __device__ Tile at(int i) {
    const int below = gram::my_rank() * kRows;
    if (i < n_kept) {
      const int per_group = kGroup * tiles_of(n_columns);
      const int group = i / per_group, in_group = min(kGroup, pairs - group * kGroup);
      i -= group * per_group;
      const int column = i / in_group * kColumns;
      return {rows,
              &maps.columns,
              (group * kGroup + i % in_group) * kPairRows + below,
              column,
              n_columns - column <= 128,
              column / kColumns,
              kKeptColumns};
    }
    i -= n_kept;
    const bool half = i >= shared.before[pairs];
    int pair, tile;
    if (half) {
      pair = shared.halves[i - shared.before[pairs]];
      tile = shared.listed[pair] / kColumns;
    } else {
      while (i >= shared.before[cursor + 1]) ++cursor;
      pair = cursor;
      tile = i - shared.before[cursor];
    }
    return {rows, listed(), pair * kPairRows + below, (listed_tile + tile) * kColumns, half,
            tile, kListed};
  }

  // The item of a pair of row tiles and a tile of columns, numbered as BasisView::open has them.
  __device__ Tile tile_of(int item) const {
    const auto tiles = static_cast<int>(view.tiles);
    const int pair = item / tiles, number = item % tiles;
    const int row = pair * kPairRows + gram::my_rank() * kRows;
    if (number < tiles_of(n_columns)) {
      const int column = number * kColumns;
      return {rows, &maps.columns, row, column, n_columns - column <= 128, number, kKeptColumns};
    }
    const int tile = number - bits_tile;
    const bool half = shared.listed[pair] - tile * kColumns <= 128;
    return {rows, listed(), row, (listed_tile + tile) * kColumns, half, tile, kListed};
  }
  __device__ int item_of(const Tile& tile) const {
    return tile.row / kPairRows * static_cast<int>(view.tiles) + bits_number(tile);
  }

  // Columns of a tile and those behind it.
  __device__ int columns_from(const Tile& tile) const {
    return tile.kind == kKeptColumns ? n_columns - tile.column
                                     : shared.listed[tile.row / kPairRows] - tile.number * kColumns;
  }

  // By all warps that multiply, before they do.
  __device__ void begin(const Tile& tile) const {
    const int c = static_cast<int>(threadIdx.x) - 128;
    wait_words();
    gram::sync_multipliers();  // those of the last item are read
    const float* from = tile.kind == kKeptColumns ? of_columns : of_listed;
    const bool is_column = c < columns_from(tile);
    bring_word(&shared.scale[c], from + (is_column ? tile.column + c : 0), is_column);
    if (c >= kRows) return;
    const int64_t at = tile.row + c;
    const bool is_row = at < view.chunk.n;
    bring_word(&shared.row_scale[c], of_rows + (is_row ? at : 0), is_row);
    bring_word(&shared.rank[c], view.lists[kList].rank + (is_row ? at : 0), is_row);
  }

  // Columns of a tile that are before a row's token, before which `rank` tokens are listed.
  __device__ int limit_of(const Tile& tile, int row, int rank) const {
    const int limit = tile.row + row >= view.chunk.n ? 0
                      : tile.kind == kKeptColumns    ? columns_from(tile)
                                                     : rank - tile.number * kColumns;
    return tile.half ? min(limit, 128) : limit;
  }
  // Pairs of a warp's 16 rows, each of which four lanes have, and their columns.
  __device__ int pairs_of(const Tile& tile, const int (&limit)[2]) const {
    const int most = tile.half ? 128 : kColumns, t = static_cast<int>(threadIdx.x) % 4;
    const int mine = t < 2 ? max(0, min(most, t == 0 ? limit[0] : limit[1])) : 0;
    return static_cast<int>(__reduce_add_sync(kAllLanes, static_cast<unsigned>(mine)));
  }
  // Of the tiles that have bits (CoverView::bits).
  __device__ int bits_number(const Tile& tile) const {
    return tile.kind == kKeptColumns ? tile.number : bits_tile + tile.number;
  }
};

// The tensors of a kernel's products, as TMA sees them: rows of so many numbers.
struct Factors {
  const uint16_t *rows, *columns, *listed;
  int64_t width;
};
inline Maps maps_of(const ChunkView& chunk, const Factors& of) {
  const CUtensorMap rows = gram::row_map(of.rows, chunk.n, of.width, of.width);
  return {rows, rows, gram::row_map(of.columns, chunk.kept.capacity, of.width, of.width),
          gram::row_map(of.listed, chunk.n + 2 * kColumns, of.width, of.width)};
}

// A chunk's rows where they were given, or as they were prepared.
inline CUtensorMap given_map(const ChunkView& chunk) {
  return chunk.rows.given == nullptr
             ? gram::row_map(chunk.rows.prepared, chunk.n, chunk.padded, chunk.padded)
             : gram::row_map(chunk.rows.given, chunk.n, chunk.padded, chunk.rows.given_stride);
}

// The kernel of a Work, whose part of shared memory is Memory. depth: of its products.
template <typename Work, typename Memory>
__device__ __forceinline__ void multiply_items(const CoverView& view, const Maps& maps,
                                               int64_t depth) {
  extern __shared__ unsigned char dynamic[];
  __shared__ gram::Barriers barriers;
  __shared__ Memory shared;
  gram::prepare(barriers, {&maps.given, &maps.rows, &maps.columns, &maps.listed});
  wait_on_dependency();
  launch_dependents();
  Work work(view, maps, shared);
  gram::run(work, depth, dynamic, barriers);
}

template <typename... Parameters>
void launch_items(Context& context, const char* name, void (*kernel)(Parameters...),
                  std::type_identity_t<Parameters>... arguments) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, gram::kBytes),
        name);
  launch_programmatic(context, name, kernel,
                      {dim3(gram::grid_size(context)), gram::kThreads, gram::kBytes}, arguments...);
}

}  // namespace sluice::impl::cuda::selection::cover
