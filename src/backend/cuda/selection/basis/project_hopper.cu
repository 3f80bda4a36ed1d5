// cascade-cover in a basis (BasisView): coordinates of rows, products with its vectors.

#include <cuda_bf16.h>

#include "backend/cuda/selection/cover/items.cuh"

namespace sluice::impl::cuda::selection {
namespace {

using namespace cover;

struct RowMaps {
  CUtensorMap given, rows, columns, vectors;
};

// Pairs of tiles of rows, the chunk's tokens and then kept columns, with all vectors.
struct ProjectWork {
  enum Kind { kTokens, kKeptColumns };
  const CoverView& view;
  const RowMaps& maps;
  int pairs, n_columns, first_column, n_both;  // pairs of tiles of tokens, and of columns too

  __device__ ProjectWork(const CoverView& of, const RowMaps& with) : view(of), maps(with) {
    n_columns = *view.chunk.kept.n;
    first_column = view.basis.progress->projected;
    pairs = static_cast<int>((view.chunk.n + kPairRows - 1) / kPairRows);
    n_both = pairs + (n_columns - first_column + kPairRows - 1) / kPairRows;
    if (!in_basis(view.basis)) n_both = 0;
  }
  __device__ const GramParts& parts() const { return view.chunk.parts; }
  __device__ int n_items() const { return n_both; }
  __device__ Tile at(int i) const {
    const int below = gram::my_rank() * kRows;
    const bool half = view.basis.rank <= 128;
    if (i >= pairs)
      return {
          &maps.columns, &maps.vectors, first_column + (i - pairs) * kPairRows + below, 0, half, 0,
          kKeptColumns};
    return {as_given(view.chunk) ? &maps.given : &maps.rows,
            &maps.vectors,
            i * kPairRows + below,
            0,
            half,
            0,
            kTokens};
  }
  __device__ void begin(const Tile&) const {}
  template <typename Products>
  __device__ void take(const Tile& tile, const Products& products, int row) const;
  __device__ float rest_of(float squares) const;
};

// With h the coordinates of a unit row x before they are rounded, the norm of what V does not reach
// is at most sqrt(1 - (|h| - row_error)^2 + deviation).
__device__ float ProjectWork::rest_of(float squares) const {
  const BasisView& basis = view.basis;
  const double norm = sqrt(double{squares}) * (1 - 0x1p-15) - basis.row_error;
  const double rest = 1 - (norm > 0 ? norm * norm : 0) + basis.deviation;
  return __double2float_ru(sqrt(fmax(rest, 0.0)) + 0x1p-20);
}

// Rows that do not exist, and exempt ones, which nobody asks for, have coordinates that meet
// nobody.
template <typename Products>
__device__ void ProjectWork::take(const Tile& tile, const Products& products, int row) const {
  const ChunkView& chunk = view.chunk;
  const BasisView& basis = view.basis;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const bool kept = tile.kind == kKeptColumns;
  uint16_t *to[2] = {}, *listed[2] = {};
  float scale[2] = {}, squares[2] = {};
  int64_t listed_at[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t at = tile.row + row + 8 * half;
    if (at >= (kept ? int64_t{n_columns} : chunk.n)) continue;
    to[half] = (kept ? basis.columns : basis.rows) + at * basis.width + 2 * t;
    scale[half] = kept                         ? chunk.kept.scale[at]
                  : chunk.rows.exempt[at] != 0 ? 0.0f
                                               : chunk.rows.scale[at];
    if (kept || view.whole) continue;
    listed_at[half] = view.lists[0].rank[at];
    if (view.lists[0].rank[at + 1] > listed_at[half])
      listed[half] = basis.listed + listed_at[half] * basis.width + 2 * t;
  }
  constexpr int kTogether = 4;  // loads in flight, where products lie in parts
#pragma unroll
  for (int first = 0; first < 32; first += kTogether) {
    if (8 * first >= basis.width) break;
    float4 found[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) found[i] = products(first + i);
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float x = (half == 0 ? found[i].x : found[i].z) * scale[half];
        const float y = (half == 0 ? found[i].y : found[i].w) * scale[half];
        squares[half] = fmaf(x, x, fmaf(y, y, squares[half]));
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
        const int column = 8 * (first + i);
        if (to[half] != nullptr) *reinterpret_cast<__nv_bfloat162*>(to[half] + column) = pair;
        if (listed[half] != nullptr)
          *reinterpret_cast<__nv_bfloat162*>(listed[half] + column) = pair;
      }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    for (int step = 1; step < 4; step *= 2)
      squares[half] += __shfl_xor_sync(kAllLanes, squares[half], step);
    if (t != 0 || to[half] == nullptr) continue;
    const int64_t at = tile.row + row + 8 * half;
    const float rest = scale[half] > 0 ? rest_of(squares[half]) : 0.0f;
    (kept ? basis.column_rest : basis.rest)[at] = rest;
    if (listed[half] != nullptr) basis.listed_rest[listed_at[half]] = rest;
  }
}

__global__ void __cluster_dims__(gram::kBlocks, 1, 1) __launch_bounds__(gram::kThreads, 1)
    cover_project(const __grid_constant__ CoverView view, const __grid_constant__ RowMaps maps) {
  extern __shared__ unsigned char dynamic[];
  __shared__ gram::Barriers barriers;
  gram::prepare(barriers, {&maps.given, &maps.rows, &maps.columns, &maps.vectors});
  wait_on_dependency();
  launch_dependents();
  ProjectWork work(view, maps);
  gram::run(work, view.chunk.padded, dynamic, barriers);
}

}  // namespace

void project_cover(Context& context, const CoverView& view) {
  const ChunkView& chunk = view.chunk;
  const int64_t padded = chunk.padded;
  const CUtensorMap rows = gram::row_map(chunk.rows.prepared, chunk.n, padded, padded);
  const RowMaps maps{given_map(chunk), rows,
                     gram::row_map(chunk.kept.prepared, chunk.kept.capacity, padded, padded),
                     gram::row_map(view.basis.vectors, view.basis.rank, padded, padded)};
  launch_items(context, "cover_project", cover_project, view, maps);
}

}  // namespace sluice::impl::cuda::selection
