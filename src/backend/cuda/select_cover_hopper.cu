// Products of cascade-cover: a chunk's tokens with kept columns and with listed tokens before them,
// reduced to bits before they leave the registers.

#include "backend/cuda/early.cuh"
#include "backend/cuda/exact.cuh"
#include "backend/cuda/gram_hopper.cuh"
#include "backend/cuda/select_marks.cuh"

namespace sluice::cuda {
namespace {

using gram::kColumns, gram::kRows, gram::Tile;

constexpr int kPairRows = gram::kBlocks * kRows, kPairs = kCoverChunk / kPairRows;
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
__device__ void bring_word(void* to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(to)),
               "l"(from), "r"(exists ? 4 : 0)
               : "memory");
}

__device__ void wait_words() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

// kList 0: pairs of row tiles x kept columns, then the first list as far as it is before a pair's
// end, pair by pair. kList 1: the second list alone. Half tiles of a list come last, when there may
// not be an item for everyone.
template <int kList>
struct CoverWork {
  enum Kind { kKeptColumns, kListed };
  const CoverView& view;
  const Maps& maps;
  Shared& shared;
  const CUtensorMap* rows;
  int pairs, n_columns, n_kept, listed_tile, bits_tile;
  int cursor = 0;  // the pair of the last item of a list

  __device__ CoverWork(const CoverView& of, const Maps& with, Shared& memory)
      : view(of), maps(with), shared(memory) {
    const ChunkView& chunk = view.chunk;
    rows = as_given(chunk) ? &maps.given : &maps.rows;
    pairs = static_cast<int>((chunk.n + kPairRows - 1) / kPairRows);
    n_columns = *chunk.n_columns;
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

  __device__ const GramParts& parts() const { return view.chunk.parts; }
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
    return {rows,
            view.whole ? rows : &maps.listed,
            pair * kPairRows + below,
            (listed_tile + tile) * kColumns,
            half,
            tile,
            kListed};
  }

  // Columns of a tile and those behind it.
  __device__ int columns_from(const Tile& tile) const {
    return tile.kind == kKeptColumns ? n_columns - tile.column
                                     : shared.listed[tile.row / kPairRows] - tile.number * kColumns;
  }
  __device__ void begin(const Tile& tile) const;
  template <typename Products>
  __device__ void take(const Tile& tile, const Products& products, int row) const;
  // Of a set, the first or the second row of a lane, the first or the last 128 columns of a tile.
  struct Place {
    int set, half, word;
  };
  template <typename Products>
  __device__ void put_levels(const Place& place, int64_t piece, const Products& products,
                             float scale) const;
};

// Which bits of a word stand for columns before the limit; both count from the word's first column,
// in whose eight it has two.
__device__ uint32_t bits_before(int limit) {
  const int n = limit <= 0 ? 0 : min(32, limit / 8 * 2 + min(limit % 8, 2));
  return n == 32 ? ~0u : (1u << n) - 1;
}

template <int kList>
__device__ void CoverWork<kList>::begin(const Tile& tile) const {
  const ChunkView& chunk = view.chunk;
  const int c = static_cast<int>(threadIdx.x) - 128;
  const bool kept = tile.kind == kKeptColumns;
  wait_words();
  gram::sync_multipliers();  // those of the last item are read
  const float* scales = kept ? chunk.column_scale : view.whole ? chunk.scale : view.listed_scale;
  const bool is_column = c < columns_from(tile);
  bring_word(&shared.scale[c], scales + (is_column ? tile.column + c : 0), is_column);
  if (c >= kRows) return;
  const int64_t at = tile.row + c;
  const bool is_row = at < chunk.n;
  bring_word(&shared.row_scale[c], chunk.scale + (is_row ? at : 0), is_row);
  bring_word(&shared.rank[c], view.lists[kList].rank + (is_row ? at : 0), is_row);
}

template <int kList>
template <typename Products>
__device__ void CoverWork<kList>::take(const Tile& tile, const Products& products, int row) const {
  const ChunkView& chunk = view.chunk;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const bool kept = tile.kind == kKeptColumns;
  wait_words();
  gram::sync_multipliers();
  float scale[2];
  int limit[2];  // columns of this tile that are before the token
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    scale[half] = shared.row_scale[row + 8 * half];
    limit[half] = tile.row + row + 8 * half >= chunk.n ? 0
                  : kept                               ? columns_from(tile)
                         : shared.rank[row + 8 * half] - tile.number * kColumns;
    if (tile.half) limit[half] = min(limit[half], 128);
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
    const int number = kept ? tile.number : bits_tile + tile.number;
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
        if (may[half][word] == 0) continue;
        const int64_t piece = (at * view.tiles + number) * kPieces + word * 4 + t;
        view.bits[piece] = make_uint2(may[half][word], must[half][word] & before);
        put_levels({set, half, word}, piece, products, scale[half]);
      }
      if (t == 0 && some != 0)
        atomicOr(view.some + at * view.words + number / 4, some << number % 4 * kPieces);
    }
  }
}

// How near the columns of a piece are.
template <int kList>
template <typename Products>
__device__ __forceinline__ void CoverWork<kList>::put_levels(const Place& place, int64_t piece,
                                                             const Products& products,
                                                             float scale) const {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const CosineLevels levels(view.chunk.thresholds[place.set], view.chunk.slack);
  uint32_t packed[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float cosines[4];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int n = place.word * 16 + 2 * i + k;
      const float2 column = *reinterpret_cast<const float2*>(shared.scale + n * 8 + 2 * t);
      const float4 found = products(n);
      cosines[2 * k] = (place.half == 0 ? found.x : found.z) * column.x * scale;
      cosines[2 * k + 1] = (place.half == 0 ? found.y : found.w) * column.y * scale;
    }
    packed[i] = levels.of(cosines);
  }
  auto* to = reinterpret_cast<uint4*>(view.levels + piece * kPieceColumns);
  to[0] = make_uint4(packed[0], packed[1], packed[2], packed[3]);
  to[1] = make_uint4(packed[4], packed[5], packed[6], packed[7]);
}

template <int kList>
__global__ void __cluster_dims__(gram::kBlocks, 1, 1) __launch_bounds__(gram::kThreads, 1)
    cover_gram(const __grid_constant__ CoverView view, const __grid_constant__ Maps maps) {
  extern __shared__ unsigned char dynamic[];
  __shared__ gram::Barriers barriers;
  __shared__ Shared shared;
  gram::prepare(barriers, {&maps.given, &maps.rows, &maps.columns, &maps.listed});
  wait_for_earlier();
  let_next_begin();
  CoverWork<kList> work(view, maps, shared);
  gram::run(work, view.chunk.padded, dynamic, barriers);
}

}  // namespace

void multiply_cover(Context& context, const CoverView& view, int list) {
  const ChunkView& chunk = view.chunk;
  const int64_t padded = chunk.padded;
  const CUtensorMap rows = gram::row_map(chunk.rows, chunk.n, padded, padded);
  const Maps maps{chunk.given == nullptr
                      ? rows
                      : gram::row_map(chunk.given, chunk.n, padded, chunk.given_stride),
                  rows, gram::row_map(chunk.columns, chunk.capacity, padded, padded),
                  gram::row_map(view.listed, chunk.n + 2 * kColumns, padded, padded)};
  const auto kernel = list == 0 ? cover_gram<0> : cover_gram<1>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, gram::kBytes),
        "shared memory of cover_gram");
  launch_early(context, "cover_gram", kernel,
               LaunchShape{dim3(gram::grid_size(context)), gram::kThreads, gram::kBytes}, view,
               maps);
}

}  // namespace sluice::cuda
