// The tokens of a chunk that others are compared with in cascade-cover (select_cover.cu).

#include "backend/cuda/block_scan.cuh"
#include "backend/cuda/early.cuh"
#include "backend/cuda/exact.cuh"
#include "backend/cuda/select_marks.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kRounds = kCoverChunk / kRankThreads, kColumns = kHopperGramColumns;

template <typename Holds>
__device__ uint32_t bits_where(int64_t n, const Holds& holds) {
  return bits_of_rounds<kRounds>(n, holds);
}

__device__ uint32_t inherited_by_any(const ChunkView& view) {
  uint32_t any = 0;
  for (int set = 0; set < view.n_sets; ++set)
    if (view.thresholds[set] > 0)
      any |= bits_where(view.n, [&](int64_t t) { return view.is_inherited(set, t); });
  return any & ~bits_where(view.n, [&](int64_t t) { return view.exempt[t] != 0; });
}

__device__ uint32_t with_verdict(const CoverView& view, int set, CoverVerdict verdict) {
  return bits_where(view.chunk.n, [&](int64_t t) {
    return view.verdict[set * view.chunk.n + t] == static_cast<uint8_t>(verdict);
  });
}

// Norms that products in f32 are at ease with; rows of zeros have none.
__device__ bool is_odd(double inverse) {
  return inverse != 0 && !(inverse > 0x1p-40 && inverse < 0x1p40);
}

// Which listed tokens are decided when the second list is made: all but the open ones.
__device__ void mark_decided(const CoverView& view, uint32_t in_first, uint32_t in_second,
                             const Ranks<kRounds>& second) {
  const int32_t* rank = view.lists[0].rank;
  const int first_tiles = tiles_of(rank[view.chunk.n]);
  for (int set = 0; set < view.chunk.n_sets; ++set) {
    const uint32_t decided = (in_first | in_second) & ~with_verdict(view, set, CoverVerdict::kOpen);
    const uint32_t kept = with_verdict(view, set, CoverVerdict::kKept);
#pragma unroll
    for (int k = 0; k < kRounds; ++k) {
      if ((decided >> k & 1) == 0) continue;
      const bool is_first = (in_first >> k & 1) != 0;
      mark(marks_of(view, 1, set), is_first ? 0 : first_tiles,
           is_first ? rank[rank_token(k)] : second.of[k], (kept >> k & 1) != 0);
    }
  }
}

// One block.
template <int kList>
__global__ void __launch_bounds__(kRankThreads)
    list_tokens(const __grid_constant__ CoverView view) {
  __shared__ int shared[32 * kRounds + 1];
  wait_for_earlier();
  let_next_begin();
  const ChunkView& chunk = view.chunk;
  const ListedTokens& list = view.lists[kList];
  uint32_t marked = 0, in_first = 0;
  bool odd = false;
  if constexpr (kList == 0) {
    for (int64_t i = threadIdx.x; i < 2 * chunk.n_sets * view.mark_tiles * kPieces;
         i += kRankThreads)
      view.marks[i] = 0;
    odd = bits_where(chunk.n, [&](int64_t t) { return is_odd(view.given_inverse[t]); }) != 0;
    marked = inherited_by_any(chunk);
  } else {
    const int32_t* rank = view.lists[0].rank;
    in_first = bits_where(chunk.n, [&](int64_t t) { return rank[t + 1] > rank[t]; });
    for (int set = 0; set < chunk.n_sets; ++set)
      marked |= with_verdict(view, set, CoverVerdict::kOpen);
    marked &= ~in_first;
  }
  const auto ranks = rank_marked<kRounds>(marked, shared);
  const int n_columns = kList == 0 ? *chunk.n_columns : 0;
  unsigned long long products = 0;
#pragma unroll
  for (int k = 0; k < kRounds; ++k) {
    if (rank_token(k) >= chunk.n) continue;
    list.rank[rank_token(k)] = ranks.of[k];
    if ((marked >> k & 1) != 0) list.token[ranks.of[k]] = static_cast<int32_t>(rank_token(k));
    products += static_cast<unsigned>(ranks.of[k] + n_columns);
  }
  if (kList == 1) mark_decided(view, in_first, marked, ranks);
  for (int step = 16; step > 0; step /= 2) products += __shfl_xor_sync(kAll, products, step);
  // Pairs, without the padding of tiles and without second looks.
  if (threadIdx.x % 32 == 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(view.products), products);
  if (kList == 0) odd = __syncthreads_or(odd ? 1 : 0) != 0;
  if (threadIdx.x != 0) return;
  list.rank[chunk.n] = ranks.total;
  view.tickets[kList] = 0;
  if (kList == 0) *view.odd = odd ? 1 : 0;
}

// Rows of the second list, behind the first.
__global__ void copy_open(const __grid_constant__ CoverView view) {
  wait_for_earlier();
  let_next_begin();
  const ChunkView& chunk = view.chunk;
  const ListedTokens& list = view.lists[1];
  const int64_t n = list.rank[chunk.n];
  const int64_t first = (view.lists[0].rank[chunk.n] + kColumns - 1) / kColumns * kColumns;
  const bool given = as_given(chunk);
  for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
    const int64_t t = list.token[i];
    const uint16_t* from =
        given ? chunk.given + t * chunk.given_stride : chunk.rows + t * chunk.padded;
    copy_row(view.listed + (first + i) * chunk.padded, from, chunk.padded);
    if (threadIdx.x == 0) view.listed_scale[first + i] = chunk.scale[t];
  }
}

}  // namespace

void list_inherited(Context& context, const CoverView& view) {
  launch_early(context, "list_tokens", list_tokens<0>, dim3(1), kRankThreads, view);
}

void list_open(Context& context, const CoverView& view) {
  launch_early(context, "list_tokens", list_tokens<1>, dim3(1), kRankThreads, view);
  launch_early(context, "copy_open", copy_open,
               dim3(static_cast<unsigned>(2 * context.multiprocessors())), 128, view);
}

}  // namespace sluice::cuda
