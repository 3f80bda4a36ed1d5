// The tokens of a chunk that others are compared with in cascade-cover (select_cover.cu).

#include "backend/cuda/block_scan.cuh"
#include "backend/cuda/exact.cuh"
#include "backend/cuda/select_marks.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kRounds = kCoverChunk / kRankThreads, kColumns = kHopperGramColumns;

__device__ bool inherited_by_any(const ChunkView& view, int64_t t) {
  bool any = false;
  for (int set = 0; set < view.n_sets; ++set)
    any |= view.thresholds[set] > 0 && is_inherited(view, set, t);
  return any && view.exempt[t] == 0;
}

__device__ bool is_open(const CoverView& view, int64_t t) {
  for (int set = 0; set < view.chunk.n_sets; ++set)
    if (view.verdict[set * view.chunk.n + t] == static_cast<uint8_t>(CoverVerdict::kOpen))
      return true;
  return false;
}

// Norms that products in f32 are at ease with; rows of zeros have none.
__device__ bool is_odd(double inverse) {
  return inverse != 0 && !(inverse > 0x1p-40 && inverse < 0x1p40);
}

// Which listed tokens are decided when the second list is made: all but the open ones.
__device__ void mark_decided(const CoverView& view, uint32_t in_second,
                             const Ranks<kRounds>& second) {
  const int32_t* rank = view.lists[0].rank;
  const int64_t n = view.chunk.n;
  const int first_tiles = tiles_of(rank[n]);
#pragma unroll
  for (int k = 0; k < kRounds; ++k) {
    const int64_t t = int64_t{k} * kRankThreads + threadIdx.x;
    if (t >= n) continue;
    const bool in_first = rank[t + 1] > rank[t], listed = in_first || (in_second >> k & 1) != 0;
    for (int set = 0; listed && set < view.chunk.n_sets; ++set) {
      const auto verdict = static_cast<CoverVerdict>(view.verdict[set * n + t]);
      if (verdict != CoverVerdict::kOpen)
        mark(marks_of(view, 1, set), in_first ? 0 : first_tiles, in_first ? rank[t] : second.of[k],
             verdict == CoverVerdict::kKept);
    }
  }
}

// One block.
template <int kList>
__global__ void __launch_bounds__(kRankThreads)
    list_tokens(const __grid_constant__ CoverView view) {
  __shared__ int shared[32 * kRounds + 1];
  const ChunkView& chunk = view.chunk;
  const ListedTokens& list = view.lists[kList];
  const auto token = [](int k) { return int64_t{k} * kRankThreads + threadIdx.x; };
  if (kList == 0)
    for (int64_t i = threadIdx.x; i < 2 * chunk.n_sets * view.mark_tiles * 8; i += kRankThreads)
      view.marks[i] = 0;
  uint32_t marked = 0;
  bool odd = false;
#pragma unroll
  for (int k = 0; k < kRounds; ++k) {
    const int64_t t = token(k);
    if (t >= chunk.n) continue;
    bool listed;
    if constexpr (kList == 0) {
      listed = inherited_by_any(chunk, t);
      odd |= is_odd(view.given_inverse[t]);
    } else {
      listed = is_open(view, t) && view.lists[0].rank[t] == view.lists[0].rank[t + 1];
    }
    if (listed) marked |= 1u << k;
  }
  const auto ranks = rank_marked<kRounds>(marked, shared);
  unsigned long long products = 0;
#pragma unroll
  for (int k = 0; k < kRounds; ++k) {
    if (token(k) >= chunk.n) continue;
    list.rank[token(k)] = ranks.of[k];
    if ((marked >> k & 1) != 0) list.token[ranks.of[k]] = static_cast<int32_t>(token(k));
    products += static_cast<unsigned>(ranks.of[k]);
    if (kList == 0) products += static_cast<unsigned>(*chunk.n_columns);
  }
  if (kList == 1) mark_decided(view, marked, ranks);
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
  list_tokens<0><<<1, kRankThreads, 0, context.stream()>>>(view);
  check_launch("list_tokens");
}

void list_open(Context& context, const CoverView& view) {
  list_tokens<1><<<1, kRankThreads, 0, context.stream()>>>(view);
  check_launch("list_tokens");
  copy_open<<<static_cast<unsigned>(2 * context.multiprocessors()), 128, 0, context.stream()>>>(
      view);
  check_launch("copy_open");
}

}  // namespace sluice::cuda
