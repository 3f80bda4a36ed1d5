// The end of a chunk: cluster numbers, and the columns that later chunks are compared with.

#include "backend/cuda/block_scan.cuh"
#include "backend/cuda/exact.cuh"

namespace sluice::cuda {
namespace {

constexpr int kRounds = kCoverChunk / kRankThreads;

__device__ uint8_t flags_of(const ChunkView& view, int set, int64_t t) {
  if (view.exempt[t] != 0 || view.thresholds[set] <= 0) return 0;
  const bool rep = view.status[set * view.set_stride + view.first + t] ==
                   static_cast<uint8_t>(TokenStatus::kRepresentative);
  const bool inherited = view.inherited[set * view.n + t] != 0;
  return static_cast<uint8_t>(kIsAny | (rep ? kIsRep : 0) | (inherited ? kIsInherited : 0) |
                              (rep && inherited ? kIsKept : 0));
}

// One block.
__global__ void __launch_bounds__(kRankThreads)
    number_and_list(const __grid_constant__ KeepView keep, uint8_t used) {
  __shared__ int shared[32 * kRounds + 1];
  const ChunkView& view = keep.chunk;
  const auto token = [](int k) { return int64_t{k} * kRankThreads + threadIdx.x; };
  const auto mark = [&](const auto& is_marked) {
    uint32_t marked = 0;
#pragma unroll
    for (int k = 0; k < kRounds; ++k)
      if (token(k) < view.n && is_marked(token(k))) marked |= 1u << k;
    return marked;
  };
  for (int set = 0; set < view.n_sets; ++set) {
    const int64_t base = set * view.set_stride + view.first;
    const uint32_t own = mark([&](int64_t t) {
      return view.status[base + t] != static_cast<uint8_t>(TokenStatus::kRedundant);
    });
    const int before = keep.n_clusters[set];
    const auto ranks = rank_marked<kRounds>(own, shared);
#pragma unroll
    for (int k = 0; k < kRounds; ++k)
      if ((own >> k & 1) != 0) view.cluster[base + token(k)] = before + ranks.of[k];
    __syncthreads();
    int32_t number[kRounds];
#pragma unroll
    for (int k = 0; k < kRounds; ++k)
      if (token(k) < view.n)
        number[k] = view.cluster[set * view.set_stride + view.owner[base + token(k)]];
#pragma unroll
    for (int k = 0; k < kRounds; ++k)
      if (token(k) < view.n && (own >> k & 1) == 0) view.cluster[base + token(k)] = number[k];
    if (threadIdx.x == 0) keep.n_clusters[set] = before + ranks.total;
  }

  const uint32_t kept = mark([&](int64_t t) {
    uint8_t flags = 0;
    for (int set = 0; set < view.n_sets; ++set) flags |= flags_of(view, set, t);
    return (flags & used) != 0;
  });
  const int n_before = keep.n_columns[0];
  const auto ranks = rank_marked<kRounds>(kept, shared);
#pragma unroll
  for (int k = 0; k < kRounds; ++k) {
    if ((kept >> k & 1) == 0) continue;
    keep.sources[ranks.of[k]] = static_cast<int32_t>(token(k));
    const int64_t column = n_before + ranks.of[k];
    keep.position[column] = static_cast<int32_t>(view.first + token(k));
    for (int set = 0; set < view.n_sets; ++set)
      keep.flags[set * view.capacity + column] = flags_of(view, set, token(k));
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
  copy_row(keep.columns + to * view.padded, row, view.padded);
  if (keep.exact_columns == nullptr) return;
  const auto* exact = static_cast<const float*>(view.exact.data) + from * view.exact.stride;
  for (int64_t i = threadIdx.x; i < view.d; i += blockDim.x)
    keep.exact_columns[to * view.d + i] = exact[i];
}

}  // namespace

void keep_chunk(Context& context, const KeepView& view) {
  number_and_list<<<1, kRankThreads, 0, context.stream()>>>(view, view.chunk.rule.used());
  check_launch("number_and_list");
  copy_kept<<<static_cast<unsigned>(view.chunk.n), 128, 0, context.stream()>>>(view);
  check_launch("copy_kept");
}

}  // namespace sluice::cuda
