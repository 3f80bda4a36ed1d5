// From cosines to statuses.

#include "backend/cuda/primitives/mma.cuh"
#include "backend/cuda/selection/common/exact.cuh"
#include "backend/cuda/selection/common/splits.cuh"
#include "backend/cuda/selection/gram/reduce.cuh"

namespace sluice::impl::cuda::selection {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kWarps = 8;   // of a block: one token each
constexpr int kBlocks = 3;  // of a multiprocessor

// Whether a kept column that counts is at the threshold.
__device__ bool blocked_by_columns(const ChunkView& view, int set, int64_t t, bool inherited) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const double threshold = view.thresholds[set];
  const int question = view.rule.apart(inherited) ? 1 : 0;
  bool sure = false, doubtful = false;
  for (int split = lane; split < splits_with_columns(view); split += 32) {
    const double first = largest_of(view, set, question, split, t).first;
    sure |= first >= threshold + view.slack;
    doubtful |= first >= threshold - view.slack;
  }
  if (__any_sync(kAll, sure)) return true;
  if (!__any_sync(kAll, doubtful)) return false;
  const auto at_threshold = [&](int64_t column) {
    return reaches(pair_with_column(view, t, column), view.rule.absolute, threshold);
  };
  const double least = threshold - view.slack;
  return any_split(view, set, question, t, least, [&](int split, const Largest& found) {
    if (found.third >= least)
      return any_column(view, set, view.rule.deciding(inherited), split, at_threshold);
    return at_threshold(found.column) ||
           (found.second >= least && at_threshold(found.second_column));
  });
}

// Bits of the chunk's earlier tokens at the threshold; whether there are any. Exempt tokens count
// for nobody, so their bits do not matter.
__device__ bool find_conflicts(const ChunkView& view, int set, int64_t t, uint32_t* words) {
  constexpr int kAhead = 8;  // words whose cosines are loaded together
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const double threshold = view.thresholds[set];
  const float* cosines = view.scratch.local + t * kChunk;
  bool any = false;
  const int n_words = static_cast<int>(t / 32) + 1;
  for (int word = n_words + lane; word < kWords; word += 32) words[word] = 0;
  for (int first = 0; first < n_words; first += kAhead) {
    float cosine[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int s = (first + i) * 32 + lane;
      cosine[i] = s < t ? cosines[s] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int word = first + i;
      if (word >= n_words) break;
      const double size = view.rule.absolute ? fabsf(cosine[i]) : cosine[i];
      const bool earlier = word * 32 + lane < t;
      const bool conflict = earlier && size >= threshold + view.slack;
      const bool doubtful = earlier && !conflict && size >= threshold - view.slack;
      uint32_t bits = __ballot_sync(kAll, conflict);
      for (uint32_t rest = __ballot_sync(kAll, doubtful); rest != 0; rest &= rest - 1) {
        const int bit = __ffs(static_cast<int>(rest)) - 1;
        if (reaches(pair_with_token(view, t, int64_t{word} * 32 + bit), view.rule.absolute,
                    threshold))
          bits |= 1u << bit;
      }
      if (lane == 0) words[word] = bits;
      any |= bits != 0;
    }
  }
  return any;
}

__global__ void __launch_bounds__(32 * kWarps, kBlocks)
    judge(const __grid_constant__ ChunkView view) {
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int set = static_cast<int>(blockIdx.y);
  if (t >= view.n) return;
  const bool inherited = view.is_inherited(set, t);
  Decision decision = kFree;
  if (view.rows.exempt[t] == 0 && view.thresholds[set] > 0) {
    if (view.rule.fixed)
      decision = inherited ? kFree : kBlocked;
    else if (blocked_by_columns(view, set, t, inherited))
      decision = kBlocked;
    else if (find_conflicts(view, set, t, view.scratch.conflicts + (set * view.n + t) * kWords))
      decision = kContested;
  }
  if (threadIdx.x % 32 == 0) view.scratch.decision[set * view.n + t] = decision;
}

// Bits of a chunk's tokens, some words to a lane of a warp: lane, lane + 32, …
struct TokenBits {
  uint32_t words[kWords / 32];
  __device__ static TokenBits from(const uint32_t* all) {
    TokenBits bits;
#pragma unroll
    for (int i = 0; i < kWords / 32; ++i) bits.words[i] = all[threadIdx.x % 32 + 32 * i];
    return bits;
  }
  __device__ void add(int token) {
#pragma unroll
    for (int i = 0; i < kWords / 32; ++i)
      if (token / 32 == static_cast<int>(threadIdx.x % 32) + 32 * i) words[i] |= 1u << token % 32;
  }
  // Whether any lane has a bit in common with a row of words.
  __device__ bool meets(const uint32_t* row) const {
    uint32_t common = 0;
#pragma unroll
    for (int i = 0; i < kWords / 32; ++i) common |= row[threadIdx.x % 32 + 32 * i] & words[i];
    return __any_sync(kAll, common != 0) != 0;
  }
};

// Words of a set: tokens that are representatives whatever comes, that are compared, and that are
// inherited.
enum SureBits { kSureReps, kCompared, kInherited, kSureBits };

__global__ void gather_sure(const __grid_constant__ ChunkView view) {
  const int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int set = static_cast<int>(blockIdx.y);
  const bool compared = t < view.n && view.rows.exempt[t] == 0;
  const uint32_t words[kSureBits] = {
      __ballot_sync(kAll, compared && view.scratch.decision[set * view.n + t] == kFree),
      __ballot_sync(kAll, compared), __ballot_sync(kAll, compared && view.is_inherited(set, t))};
  if (t % 32 != 0) return;
  for (int i = 0; i < kSureBits; ++i)
    view.scratch.sure[(set * kSureBits + i) * kWords + t / 32] = words[i];
}

// A contested token is blocked when a sure representative, or a token that counts in any case,
// covers it. That leaves few to be decided in order.
__global__ void settle_contested(const __grid_constant__ ChunkView view) {
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int set = static_cast<int>(blockIdx.y);
  if (t >= view.n || view.rows.exempt[t] != 0 ||
      view.scratch.decision[set * view.n + t] != kContested)
    return;
  const uint32_t* words = view.scratch.sure + set * kSureBits * kWords;
  const uint8_t mask = view.rule.deciding(view.is_inherited(set, t));
  TokenBits counting = TokenBits::from(words + (mask == kIsAny         ? kCompared
                                                : mask == kIsInherited ? kInherited
                                                                       : kSureReps) *
                                                   kWords);
  if (mask == kIsKept) {
    const TokenBits inherited = TokenBits::from(words + kInherited * kWords);
    for (int i = 0; i < kWords / 32; ++i) counting.words[i] &= inherited.words[i];
  }
  const bool blocked = counting.meets(view.scratch.conflicts + (set * view.n + t) * kWords);
  if (blocked && threadIdx.x % 32 == 0) view.scratch.decision[set * view.n + t] = kBlocked;
}

// One block per set. A token that nothing contests is decided at once; the others in order, by one
// warp: a token is a representative when no bit of its conflicts is among those that count for it.
// The other warps fetch the next batch of conflicts meanwhile.
constexpr int kResolveThreads = 256, kBatch = 32;

struct ResolveMemory {
  uint32_t compared[kWords], inherited[kWords], reps[kWords], contested[kWords];
  int16_t tokens[kChunk];  // contested ones, in order
  int n_contested;
  __align__(16) uint32_t conflicts[2][kBatch][kWords];
};

// The first look's decisions as bits.
__device__ void gather_decisions(const ChunkView& view, int set, ResolveMemory& memory) {
  const bool all_represent = view.thresholds[set] <= 0;
  for (int t = static_cast<int>(threadIdx.x); t < kChunk; t += kResolveThreads) {
    const bool compared = t < view.n && view.rows.exempt[t] == 0;
    const uint8_t decision =
        compared && !all_represent ? view.scratch.decision[set * view.n + t] : uint8_t{kFree};
    const bool inherited = compared && view.is_inherited(set, t);
    const uint32_t words[4] = {__ballot_sync(kAll, compared), __ballot_sync(kAll, inherited),
                               __ballot_sync(kAll, compared && decision == kFree),
                               __ballot_sync(kAll, compared && decision == kContested)};
    if (t % 32 != 0) continue;
    memory.compared[t / 32] = words[0];
    memory.inherited[t / 32] = words[1];
    memory.reps[t / 32] = words[2];
    memory.contested[t / 32] = words[3];
  }
  __syncthreads();
  // Some words to a lane of the first warp, listed behind those of the lanes before.
  if (threadIdx.x < 32) {
    constexpr int kPerLane = kWords / 32;
    const int lane = static_cast<int>(threadIdx.x);
    const uint32_t* mine = memory.contested + kPerLane * lane;
    int n = 0;
    for (int i = 0; i < kPerLane; ++i) n += __popc(mine[i]);
    int end = n;
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(kAll, end, step);
      if (lane >= step) end += before;
    }
    int at = end - n;
    for (int i = 0; i < kPerLane; ++i)
      for (uint32_t bits = mine[i]; bits != 0; bits &= bits - 1)
        memory.tokens[at++] =
            static_cast<int16_t>((kPerLane * lane + i) * 32 + __ffs(static_cast<int>(bits)) - 1);
    if (lane == 31) memory.n_contested = end;
  }
  __syncthreads();
}

__global__ void resolve(const __grid_constant__ ChunkView view) {
  __shared__ ResolveMemory memory;
  const int set = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
  gather_decisions(view, set, memory);
  const int n_contested = memory.n_contested;
  const auto fetch = [&](int batch) {
    for (int i = static_cast<int>(threadIdx.x); i < kBatch * kWords / 4; i += kResolveThreads) {
      const int row = i / (kWords / 4), piece = i % (kWords / 4);
      const bool exists = batch * kBatch + row < n_contested;
      const int64_t t = exists ? memory.tokens[batch * kBatch + row] : 0;
      copy_async(&memory.conflicts[batch % 2][row][piece * 4],
                 view.scratch.conflicts + (set * view.n + t) * kWords + piece * 4, exists);
    }
    commit_copies();
  };
  TokenBits reps{}, kept{}, inherited{}, compared{};  // of the first warp
  if (threadIdx.x < 32) {
    reps = TokenBits::from(memory.reps);
    inherited = TokenBits::from(memory.inherited);
    compared = TokenBits::from(memory.compared);
    kept = reps;
#pragma unroll
    for (int i = 0; i < kWords / 32; ++i) kept.words[i] &= inherited.words[i];
  }
  fetch(0);
  for (int first = 0; first < n_contested; first += kBatch) {
    wait_copies<0>();
    __syncthreads();
    const int batch = first / kBatch;
    if (first + kBatch < n_contested) fetch(batch + 1);
    if (threadIdx.x >= 32) continue;
    for (int i = first; i < min(first + kBatch, n_contested); ++i) {
      const int token = memory.tokens[i];
      const bool is_inherited = (memory.inherited[token / 32] >> token % 32 & 1) != 0;
      const uint8_t mask = view.rule.deciding(is_inherited);
      TokenBits counting;
#pragma unroll
      for (int word = 0; word < kWords / 32; ++word)
        counting.words[word] = mask == kIsRep         ? reps.words[word]
                               : mask == kIsKept      ? kept.words[word]
                               : mask == kIsInherited ? inherited.words[word]
                                                      : compared.words[word];
      if (counting.meets(memory.conflicts[batch % 2][i - first])) continue;
      reps.add(token);
      if (is_inherited) kept.add(token);
    }
  }
  if (threadIdx.x < 32)
#pragma unroll
    for (int i = 0; i < kWords / 32; ++i) memory.reps[lane + 32 * i] = reps.words[i];
  wait_copies<0>();
  __syncthreads();
  for (int t = static_cast<int>(threadIdx.x); t < view.n; t += kResolveThreads) {
    const TokenStatus status = view.rows.exempt[t] != 0 ? TokenStatus::kExempt
                               : (memory.reps[t / 32] >> t % 32 & 1) != 0
                                   ? TokenStatus::kRepresentative
                                   : TokenStatus::kRedundant;
    view.sets.status[set * view.sets.stride + view.first + t] = static_cast<uint8_t>(status);
  }
}

dim3 tokens_by_sets(const ChunkView& view) {
  return {static_cast<unsigned>(ceil_div(view.n, kWarps)), static_cast<unsigned>(view.n_sets)};
}

}  // namespace

void judge_chunk(Context& context, const ChunkView& view) {
  judge<<<tokens_by_sets(view), 32 * kWarps, 0, context.stream()>>>(view);
  check_launch("judge");
  const dim3 whole(kChunk / 256, static_cast<unsigned>(view.n_sets));
  gather_sure<<<whole, 256, 0, context.stream()>>>(view);
  check_launch("gather_sure");
  settle_contested<<<tokens_by_sets(view), 32 * kWarps, 0, context.stream()>>>(view);
  check_launch("settle_contested");
}

void resolve_chunk(Context& context, const ChunkView& view) {
  resolve<<<static_cast<unsigned>(view.n_sets), kResolveThreads, 0, context.stream()>>>(view);
  check_launch("resolve");
}

}  // namespace sluice::impl::cuda::selection
