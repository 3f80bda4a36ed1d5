// The end of a chunk: cluster numbers, and the columns that later chunks are compared with.

#include "backend/cuda/block_scan.cuh"
#include "backend/cuda/exact.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 1024, kPerThread = kCoverChunk / kThreads;

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
  const int64_t t0 = int64_t{threadIdx.x} * kPerThread;
  const auto mark = [&](const auto& is_marked) {
    uint32_t marked = 0;
    for (int i = 0; i < kPerThread; ++i)
      if (t0 + i < view.n && is_marked(t0 + i)) marked |= 1u << i;
    return marked;
  };
  for (int set = 0; set < view.n_sets; ++set) {
    const int64_t base = set * view.set_stride + view.first;
    const uint32_t own = mark([&](int64_t t) {
      return view.status[base + t] != static_cast<uint8_t>(TokenStatus::kRedundant);
    });
    const int before = keep.n_clusters[set];
    const Ranks ranks = rank_marked(own, shared);
    for (int i = 0; i < kPerThread; ++i)
      if ((own >> i & 1) != 0) view.cluster[base + t0 + i] = before + ranks.of(own, i);
    __syncthreads();
    for (int i = 0; i < kPerThread && t0 + i < view.n; ++i)
      if ((own >> i & 1) == 0)
        view.cluster[base + t0 + i] =
            view.cluster[set * view.set_stride + view.owner[base + t0 + i]];
    if (threadIdx.x == 0) keep.n_clusters[set] = before + ranks.total;
  }

  const uint32_t kept = mark([&](int64_t t) {
    uint8_t flags = 0;
    for (int set = 0; set < view.n_sets; ++set) flags |= flags_of(view, set, t);
    return (flags & used) != 0;
  });
  const int n_before = keep.n_columns[0];
  const Ranks ranks = rank_marked(kept, shared);
  for (int i = 0; i < kPerThread; ++i) {
    if ((kept >> i & 1) == 0) continue;
    const int rank = ranks.of(kept, i);
    keep.sources[rank] = static_cast<int32_t>(t0 + i);
    const int64_t column = n_before + rank;
    keep.position[column] = static_cast<int32_t>(view.first + t0 + i);
    for (int set = 0; set < view.n_sets; ++set)
      keep.flags[set * view.capacity + column] = flags_of(view, set, t0 + i);
  }
  if (threadIdx.x == 0) {
    keep.n_columns[1] = n_before;
    keep.n_columns[0] = n_before + ranks.total;
    bool live = false;
    for (int set = 0; set < view.n_sets; ++set) live |= view.thresholds[set] > 0;
    // Pairs, without the padding of tiles and without second looks.
    if (live && keep.products != nullptr)
      *keep.products += view.n * n_before + view.n * (view.n - 1) / 2;
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
  const uint16_t* row =
      as_given(view) ? view.given + from * view.given_stride : view.rows + from * view.padded;
  const auto* source = reinterpret_cast<const uint4*>(row);
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
