// The end of a chunk: cluster numbers, and the columns that later chunks are compared with.

#include "backend/cuda/block_scan.cuh"
#include "backend/cuda/early.cuh"
#include "backend/cuda/exact.cuh"

namespace sluice::cuda {
namespace {

constexpr int kRounds = kCoverChunk / kRankThreads;

template <typename Holds>
__device__ uint32_t bits_where(int64_t n, const Holds& holds) {
  return bits_of_rounds<kRounds>(n, holds);
}

// Cluster numbers of a set: whoever stands for itself counts, the others have their owner's.
__device__ void number_set(const KeepView& keep, int set, int* shared) {
  const ChunkView& view = keep.chunk;
  const int64_t base = set * view.set_stride + view.first;
  const uint32_t own = bits_where(view.n, [&](int64_t t) {
    return view.status[base + t] != static_cast<uint8_t>(TokenStatus::kRedundant);
  });
  int32_t owner[kRounds];
#pragma unroll
  for (int k = 0; k < kRounds; ++k)
    owner[k] = rank_token(k) < view.n ? view.owner[base + rank_token(k)] : 0;
  const int before = keep.n_clusters[set];
  const auto ranks = rank_marked<kRounds>(own, shared);
#pragma unroll
  for (int k = 0; k < kRounds; ++k)
    if ((own >> k & 1) != 0) view.cluster[base + rank_token(k)] = before + ranks.of[k];
  __syncthreads();
  int32_t number[kRounds];
#pragma unroll
  for (int k = 0; k < kRounds; ++k)
    if (rank_token(k) < view.n) number[k] = view.cluster[set * view.set_stride + owner[k]];
#pragma unroll
  for (int k = 0; k < kRounds; ++k)
    if (rank_token(k) < view.n && (own >> k & 1) == 0)
      view.cluster[base + rank_token(k)] = number[k];
  if (threadIdx.x == 0) keep.n_clusters[set] = before + ranks.total;
}

// For whom a block's tokens count as columns in a set, bit by bit.
struct TokenFlags {
  uint32_t compared, reps, inherited;

  __device__ TokenFlags(const ChunkView& view, int set, uint32_t exempt) {
    const int64_t base = set * view.set_stride + view.first;
    compared = view.thresholds[set] > 0 ? ~exempt : 0;
    reps = compared & bits_where(view.n, [&](int64_t t) {
             return view.status[base + t] == static_cast<uint8_t>(TokenStatus::kRepresentative);
           });
    inherited = compared & bits_where(view.n, [&](int64_t t) { return view.is_inherited(set, t); });
  }
  // Those that have one of these flags.
  __device__ uint32_t with(uint8_t flags) const {
    return ((flags & kIsAny) != 0 ? compared : 0) | ((flags & kIsRep) != 0 ? reps : 0) |
           ((flags & kIsInherited) != 0 ? inherited : 0) |
           ((flags & kIsKept) != 0 ? reps & inherited : 0);
  }
  __device__ uint8_t of(int k) const {
    const auto has = [&](uint32_t bits, uint8_t flag) {
      return (bits >> k & 1) != 0 ? flag : uint8_t{0};
    };
    return static_cast<uint8_t>(has(compared, kIsAny) | has(reps, kIsRep) |
                                has(inherited, kIsInherited) | has(reps & inherited, kIsKept));
  }
};

// One block.
__global__ void __launch_bounds__(kRankThreads)
    number_and_list(const __grid_constant__ KeepView keep, uint8_t used) {
  __shared__ int shared[32 * kRounds + 1];
  wait_for_earlier();
  let_next_begin();
  const ChunkView& view = keep.chunk;
  for (int set = 0; set < view.n_sets; ++set) number_set(keep, set, shared);

  const uint32_t exempt = bits_where(view.n, [&](int64_t t) { return view.exempt[t] != 0; });
  const uint32_t exist = bits_where(view.n, [](int64_t) { return true; });
  uint32_t kept = 0;
  bool live = false;
  for (int set = 0; set < view.n_sets; ++set) {
    kept |= exist & TokenFlags(view, set, exempt).with(used);
    live |= view.thresholds[set] > 0;
  }
  const int n_before = keep.n_columns[0];
  const auto ranks = rank_marked<kRounds>(kept, shared);
#pragma unroll
  for (int k = 0; k < kRounds; ++k) {
    if ((kept >> k & 1) == 0) continue;
    keep.sources[ranks.of[k]] = static_cast<int32_t>(rank_token(k));
    keep.position[n_before + ranks.of[k]] = static_cast<int32_t>(view.first + rank_token(k));
  }
  for (int set = 0; set < view.n_sets; ++set) {
    const TokenFlags flags(view, set, exempt);
#pragma unroll
    for (int k = 0; k < kRounds; ++k)
      if ((kept >> k & 1) != 0)
        keep.flags[set * view.capacity + n_before + ranks.of[k]] = flags.of(k);
  }
  if (threadIdx.x == 0) {
    keep.n_columns[1] = n_before;
    keep.n_columns[0] = *keep.host_columns = n_before + ranks.total;
    // Pairs, without the padding of tiles and without second looks.
    if (live && keep.products != nullptr)
      *keep.products += view.n * n_before + view.n * (view.n - 1) / 2;
  }
}

__global__ void copy_kept(const __grid_constant__ KeepView keep) {
  wait_for_earlier();
  let_next_begin();
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
  launch_early(context, "number_and_list", number_and_list, dim3(1), kRankThreads, view,
               view.chunk.rule.used());
  launch_early(context, "copy_kept", copy_kept, dim3(static_cast<unsigned>(view.chunk.n)), 128,
               view);
}

}  // namespace sluice::cuda
