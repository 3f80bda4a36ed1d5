// selection/gram/gram.cu on Hopper's tensor cores.

#include "backend/cuda/selection/gram/hopper.cuh"
#include "backend/cuda/selection/gram/reduce.cuh"

namespace sluice::impl::cuda::selection {
namespace {

using gram::kColumns, gram::kRows, gram::Tile;

constexpr int kPairRows = gram::kBlocks * kRows;
static_assert(kPairRows == kColumns);

struct Maps {
  CUtensorMap rows, columns;
};

// Whose columns count: for an owner, and for what decides a plain token or an inherited one.
constexpr int kMasks = 3;
struct Scales {
  float of[kMasks][kColumns];  // 1 / norm, NaN for columns that do not count
};

__device__ void fill_scales(const ChunkView& view, int set, int64_t first, Scales& scales) {
  gram::sync_multipliers();  // the last ones are read
  const int c = static_cast<int>(threadIdx.x) - 128;
  const bool exists = first + c < *view.kept.n;
  const uint8_t flags = exists ? view.kept.flags[set * view.kept.capacity + first + c] : uint8_t{0};
  const float scale = exists ? view.kept.scale[first + c] : 0.0f;
  const uint8_t masks[kMasks] = {kIsRep, view.rule.deciding(false), view.rule.deciding(true)};
#pragma unroll
  for (int i = 0; i < kMasks; ++i) scales.of[i][c] = (flags & masks[i]) != 0 ? scale : NAN;
  gram::sync_multipliers();
}

// The largest of a lane's columns; `scales` and `first` begin at the first of them. Columns that
// were not multiplied do not count.
template <bool kAbsolute, typename Products>
__device__ Largest largest_of(const Products& products, int half, const float* scales, int first) {
  Largest best = none_yet();
#pragma unroll
  for (int n = 0; n < 32; ++n) {
    const float2 scale = *reinterpret_cast<const float2*>(scales + n * 8);
    const float4 found = products(n);
    const float x = (half == 0 ? found.x : found.z) * scale.x;
    const float y = (half == 0 ? found.y : found.w) * scale.y;
    insert(best, kAbsolute ? fabsf(x) : x, first + n * 8);
    insert(best, kAbsolute ? fabsf(y) : y, first + n * 8 + 1);
  }
  return best;
}

template <typename Products>
__device__ void reduce(const ChunkView& view, const Products& products, int column_tile, int row,
                       Scales& scales) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int first = column_tile * kColumns;
  for (int set = 0; set < view.n_sets; ++set) {
    if (view.thresholds[set] <= 0) continue;
    fill_scales(view, set, first, scales);
    for (int decides = 0; decides < 2; ++decides) {
      if (!is_question(view, set, decides == 1)) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t at = row + 8 * half;
        const Question question = question_of(view, set, decides == 1, at);
        Largest best = none_yet();
        if (question.asked) {
          const bool inherited = view.is_inherited(set, at);
          const float* mine = scales.of[decides == 0 ? 0 : inherited ? 2 : 1] + 2 * t;
          best = question.absolute ? largest_of<true>(products, half, mine, first + 2 * t)
                                   : largest_of<false>(products, half, mine, first + 2 * t);
          // A row of zeros has only zeros.
          const float scale = question.scale > 0 ? question.scale : 1.0f;
          best.first *= scale;
          best.second *= scale;
          best.third *= scale;
        }
        merge_lanes(best);
        if (t == 0 && at < view.n)
          view.scratch
              .largest[((int64_t{set} * 2 + decides) * view.n_splits + column_tile) * view.n + at] =
              best;
      }
    }
  }
}

template <typename Products>
__device__ void write_local(const ChunkView& view, const Products& products, const Tile& tile,
                            int row) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int first = tile.column + 2 * t;
  const int n_left = min(static_cast<int>(view.n) - first, tile.half ? 128 : kColumns);
  const float* scales = view.rows.scale + first;
#pragma unroll
  for (int n = 0; n < 32; ++n) {
    const float4 found = products(n);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = row + 8 * half;
      if (at >= view.n) continue;
      float* to = view.scratch.local + at * kChunk + first + n * 8;
      const float scale = view.rows.scale[at];
      if (n * 8 < n_left) to[0] = (half == 0 ? found.x : found.z) * scale * scales[n * 8];
      if (n * 8 + 1 < n_left) to[1] = (half == 0 ? found.y : found.w) * scale * scales[n * 8 + 1];
    }
  }
}

// First the chunk's items at and below the diagonal, then pairs of row tiles x kept columns.
struct ChunkWork {
  enum Kind { kKeptColumns, kLocal };
  const ChunkView& view;
  const Maps& maps;
  Scales& scales;
  int pairs, n_columns, n_local;  // pairs of row tiles are as high as column tiles are wide

  __device__ ChunkWork(const ChunkView& of, const Maps& with, Scales& shared)
      : view(of), maps(with), scales(shared), n_columns(*of.kept.n) {
    pairs = static_cast<int>((view.n + kPairRows - 1) / kPairRows);
    n_local = view.scratch.local == nullptr ? 0 : pairs * (pairs + 1) / 2;
  }
  __device__ const GramParts& parts() const { return view.parts; }
  __device__ int n_items() const {
    return n_local + pairs * ((n_columns + kColumns - 1) / kColumns);
  }
  __device__ Tile at(int i) const {
    const int below = gram::my_rank() * kRows;
    if (i >= n_local) {
      const int column_tile = (i - n_local) / pairs;
      return {&maps.rows,
              &maps.columns,
              (i - n_local) % pairs * kPairRows + below,
              column_tile * kColumns,
              n_columns - column_tile * kColumns <= 128,
              column_tile,
              kKeptColumns};
    }
    int pair = 0;
    while (i > pair) i -= ++pair;
    // A short last pair meets the first half of the diagonal alone.
    const bool half = view.n - i * kColumns <= 128;
    return {&maps.rows, &maps.rows, pair * kPairRows + below, i * kColumns, half, i, kLocal};
  }
  __device__ void begin(const Tile&) const {}
  template <typename Products>
  __device__ void take(const Tile& tile, const Products& products, int row) const {
    if (tile.kind == kLocal)
      write_local(view, products, tile, tile.row + row);
    else
      reduce(view, products, tile.number, tile.row + row, scales);
  }
};

__global__ void __cluster_dims__(gram::kBlocks, 1, 1) __launch_bounds__(gram::kThreads, 1)
    chunk_gram_hopper(const __grid_constant__ ChunkView view, const __grid_constant__ Maps maps) {
  extern __shared__ unsigned char dynamic[];
  __shared__ gram::Barriers barriers;
  __shared__ __align__(8) Scales scales;
  gram::prepare(barriers, {&maps.rows, &maps.columns});
  ChunkWork work(view, maps, scales);
  gram::run(work, view.padded, dynamic, barriers);
}

}  // namespace

void multiply_chunk_hopper(Context& context, const ChunkView& view) {
  SLUICE_CHECK(view.n <= kChunk && view.tile_columns == kColumns);
  const Maps maps{gram::row_map(view.rows.prepared, view.n, view.padded, view.padded),
                  gram::row_map(view.kept.prepared, view.kept.capacity, view.padded, view.padded)};
  check(cudaFuncSetAttribute(chunk_gram_hopper, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             gram::kBytes),
        "shared memory of chunk_gram_hopper");
  chunk_gram_hopper<<<gram::grid_size(context), gram::kThreads, gram::kBytes, context.stream()>>>(
      view, maps);
  check_launch("chunk_gram_hopper");
}

}  // namespace sluice::impl::cuda::selection
