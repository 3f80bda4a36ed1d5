// The end of a chunk: cluster numbers, and the columns that later chunks are compared with.

#include "backend/cuda/runtime/dependent_launch.cuh"
#include "backend/cuda/selection/common/marks.cuh"
#include "backend/cuda/selection/common/table.cuh"

namespace sluice::impl::cuda::selection {
namespace {

// Cluster numbers of a set: whoever stands for itself counts, the others have their owner's.
__device__ void number_set(const KeepView& keep, int set, TokenTable& table) {
  const ChunkView& view = keep.chunk;
  const int64_t base = set * view.sets.stride + view.first;
  const int64_t first = int64_t{threadIdx.x} * 32;
  const uint32_t exist = first + 32 <= view.n ? ~0u
                         : first < view.n     ? (1u << (view.n - first)) - 1
                                              : 0;
  table.fill(exist & ~bits_equal(view.sets.status + base, view.n,
                                 static_cast<uint8_t>(TokenStatus::kRedundant)));
  const int before = keep.before[1 + set];
  TableBlocks::all().for_tokens(view.n, [&](int64_t t) {
    const int64_t owner = table.has(t) ? t : view.sets.owner[base + t] - view.first;
    view.sets.cluster[base + t] =
        owner >= 0 ? before + table.rank(owner) : view.sets.cluster[base + owner];
  });
  if (blockIdx.x == 0 && threadIdx.x == 0) keep.after[1 + set] = before + table.total;
}

__device__ bool is_rep(const ChunkView& view, int set, int64_t t) {
  return view.sets.status[set * view.sets.stride + view.first + t] ==
         static_cast<uint8_t>(TokenStatus::kRepresentative);
}

// What later chunks are compared with: a thread's tokens that have one of the flags in a set.
__device__ uint32_t used_in_any(const ChunkView& view, uint8_t used) {
  const uint32_t compared = bits_equal(view.rows.exempt, view.n, 0);
  uint32_t any = 0;
  for (int set = 0; set < view.n_sets; ++set) {
    if (view.thresholds[set] <= 0) continue;
    const uint32_t reps = bits_equal(view.sets.status + set * view.sets.stride + view.first, view.n,
                                     static_cast<uint8_t>(TokenStatus::kRepresentative));
    const uint32_t inherited = bits_inherited(view, set);
    if ((used & kIsAny) != 0) any |= compared;
    if ((used & kIsRep) != 0) any |= reps;
    if ((used & kIsInherited) != 0) any |= inherited;
    if ((used & kIsKept) != 0) any |= reps & inherited;
  }
  return any & compared;
}

// Pairs that coordinates told to be below all thresholds, and that were not multiplied again.
__device__ void count_dropped(const BasisView& basis) {
  int64_t n = 0;
  for (int64_t i = int64_t{blockIdx.x} * kTableThreads + threadIdx.x; i < basis.n_items;
       i += int64_t{gridDim.x} * kTableThreads)
    if (basis.open[i] <= kMostOpenPairs) n += basis.below[i];
  for (int step = 16; step > 0; step /= 2) n += __shfl_xor_sync(kAllLanes, n, step);
  if (threadIdx.x % 32 == 0 && n > 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(&basis.progress->dropped),
              static_cast<unsigned long long>(n));
}

// The row of a token, or a part of it, and all of its coordinates.
__device__ void keep_row(const KeepView& keep, bool coordinates, int64_t t, int64_t to, int first,
                         int width) {
  const ChunkView& view = keep.chunk;
  const BasisView& basis = keep.basis;
  copy_row(keep.columns + to * view.padded + first, matrix_row(view, t) + first, width);
  if (coordinates && first == 0)
    copy_row(basis.columns + to * basis.width, basis.rows + t * basis.width, basis.width);
  if (keep.exact_columns == nullptr) return;
  const auto* exact = static_cast<const float*>(view.rows.exact.data) + t * view.rows.exact.stride;
  for (int64_t i = first + threadIdx.x % 32; i < min(int64_t{first + width}, view.d); i += 32)
    keep.exact_columns[to * view.d + i] = exact[i];
}

__global__ void __launch_bounds__(kTableThreads, 2)
    number_and_keep(const __grid_constant__ KeepView keep, uint8_t used) {
  __shared__ TokenTable columns, clusters;
  wait_on_dependency();
  launch_dependents();
  const TableBlocks blocks = TableBlocks::all();
  const ChunkView& view = keep.chunk;
  const int before = keep.before[0];
  const bool coordinates = in_basis(keep.basis);
  columns.fill(used_in_any(view, used));
  for (int set = 0; set < view.n_sets; ++set) number_set(keep, set, clusters);
  blocks.for_pieces(columns, view.padded, [&](int64_t t, int64_t at, int first, int width) {
    keep_row(keep, coordinates, t, before + at, first, width);
  });
  blocks.for_tokens(view.n, [&](int64_t t) {
    if (!columns.has(t)) return;
    const int64_t to = before + columns.rank(t);
    keep.position[to] = static_cast<int32_t>(view.first + t);
    keep.column_scale[to] = view.rows.scale[t];
    keep.column_inverse[to] = view.rows.exact.inverse[t];
    if (coordinates) keep.basis.column_rest[to] = keep.basis.rest[t];
    for (int set = 0; set < view.n_sets; ++set)
      keep.flags[set * view.kept.capacity + to] =
          view.thresholds[set] > 0 ? column_flags(is_rep(view, set, t), view.is_inherited(set, t))
                                   : uint8_t{0};
  });
  if (coordinates) count_dropped(keep.basis);
  if (!blocks.is_first() || threadIdx.x != 0) return;
  keep.after[0] = *keep.host_columns = before + columns.total;
  if (coordinates) {
    keep.basis.progress->projected = before + columns.total;
    keep.host_columns[1] = keep.basis.progress->given_up;
  }
  bool live = false;
  for (int set = 0; set < view.n_sets; ++set) live |= view.thresholds[set] > 0;
  // Pairs, without the padding of tiles and without second looks.
  if (live && keep.products != nullptr)
    *keep.products += view.n * before + view.n * (view.n - 1) / 2;
}

}  // namespace

void keep_chunk(Context& context, const KeepView& view) {
  launch_programmatic(context, "number_and_keep", number_and_keep,
                      table_blocks(context, view.chunk.n), kTableThreads, view,
                      view.chunk.rule.used());
}

}  // namespace sluice::impl::cuda::selection
