// The end of a chunk: cluster numbers, and the columns that later chunks are compared with.

#include "backend/cuda/element.cuh"
#include "backend/cuda/select_kernels.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 1024, kPerThread = kChunk / kThreads;
static_assert(kPerThread == 2);

// How many of the earlier threads' tokens are marked, for each of this thread's two; `total`: of
// all threads. shared: 33 places.
struct Ranks {
  int first, second, total;
};
__device__ Ranks rank_marked(bool first, bool second, int* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int mine = (first ? 1 : 0) + (second ? 1 : 0);
  int sum = mine;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // whoever reads the last ranks is done
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    const int of_warp = shared[lane];
    int upto = of_warp;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, upto, step);
      if (lane >= step) upto += other;
    }
    shared[lane] = upto - of_warp;
    if (lane == 31) shared[32] = upto;
  }
  __syncthreads();
  const int before = shared[warp] + sum - mine;
  return {before, before + (first ? 1 : 0), shared[32]};
}

__device__ uint8_t flags_of(const ChunkView& view, int set, int64_t t) {
  if (view.exempt[t] != 0 || view.thresholds[set] <= 0) return 0;
  const bool rep = view.status[set * view.set_stride + view.first + t] ==
                   static_cast<uint8_t>(TokenStatus::kRepresentative);
  const bool inherited = view.inherited[set * view.n + t] != 0;
  return static_cast<uint8_t>(kIsAny | (rep ? kIsRep : 0) | (inherited ? kIsInherited : 0) |
                              (rep && inherited ? kIsKept : 0));
}

__global__ void number_and_list(const __grid_constant__ KeepView keep, uint8_t used) {
  __shared__ int shared[33];
  const ChunkView& view = keep.chunk;
  const int64_t t0 = int64_t{threadIdx.x} * 2;
  for (int set = 0; set < view.n_sets; ++set) {
    const int64_t base = set * view.set_stride + view.first;
    const auto own = [&](int64_t t) {
      return t < view.n && view.status[base + t] != static_cast<uint8_t>(TokenStatus::kRedundant);
    };
    const bool own0 = own(t0), own1 = own(t0 + 1);
    const int before = keep.n_clusters[set];
    const Ranks ranks = rank_marked(own0, own1, shared);
    if (own0) view.cluster[base + t0] = before + ranks.first;
    if (own1) view.cluster[base + t0 + 1] = before + ranks.second;
    __syncthreads();
    for (int64_t t = t0; t < t0 + 2 && t < view.n; ++t)
      if (!own(t))
        view.cluster[base + t] = view.cluster[set * view.set_stride + view.owner[base + t]];
    if (threadIdx.x == 0) keep.n_clusters[set] = before + ranks.total;
  }

  const auto kept = [&](int64_t t) {
    uint8_t flags = 0;
    for (int set = 0; t < view.n && set < view.n_sets; ++set) flags |= flags_of(view, set, t);
    return (flags & used) != 0;
  };
  const bool kept0 = kept(t0), kept1 = kept(t0 + 1);
  const int n_before = keep.n_columns[0];
  const Ranks ranks = rank_marked(kept0, kept1, shared);
  const auto put = [&](int64_t t, int rank) {
    keep.sources[rank] = static_cast<int32_t>(t);
    const int64_t column = n_before + rank;
    keep.position[column] = static_cast<int32_t>(view.first + t);
    for (int set = 0; set < view.n_sets; ++set)
      keep.flags[set * view.capacity + column] = flags_of(view, set, t);
  };
  if (kept0) put(t0, ranks.first);
  if (kept1) put(t0 + 1, ranks.second);
  if (threadIdx.x == 0) {
    keep.n_columns[1] = n_before;
    keep.n_columns[0] = n_before + ranks.total;
    bool live = false;
    for (int set = 0; set < view.n_sets; ++set) live |= view.thresholds[set] > 0;
    if (live) *keep.products += view.n * n_before + view.n * (view.n - 1) / 2;
  }
}

__global__ void copy_kept(const __grid_constant__ KeepView keep) {
  const ChunkView& view = keep.chunk;
  const int before = keep.n_columns[1], rank = static_cast<int>(blockIdx.x);
  if (rank >= keep.n_columns[0] - before) return;
  const int64_t from = keep.sources[rank], to = before + rank;
  if (threadIdx.x == 0) {
    keep.column_scale[to] = view.scale[from];
    keep.column_inverse[to] = view.exact.inverse[from];
  }
  const auto* source = reinterpret_cast<const uint4*>(view.rows + from * view.padded);
  auto* target = reinterpret_cast<uint4*>(keep.columns + to * view.padded);
  for (int64_t i = threadIdx.x; i < view.padded / 8; i += blockDim.x) target[i] = source[i];
  if (keep.exact_columns == nullptr) return;
  const auto* exact = static_cast<const float*>(view.exact.data) + from * view.exact.stride;
  for (int64_t i = threadIdx.x; i < view.d; i += blockDim.x)
    keep.exact_columns[to * view.d + i] = exact[i];
}

}  // namespace

void keep_chunk(Context& context, const KeepView& view) {
  number_and_list<<<1, kThreads, 0, context.stream()>>>(view, view.chunk.rule.used());
  check_launch("number_and_list");
  copy_kept<<<static_cast<unsigned>(view.chunk.n), 128, 0, context.stream()>>>(view);
  check_launch("copy_kept");
}

}  // namespace sluice::cuda
