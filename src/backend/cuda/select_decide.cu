// From cosines to statuses and owners.

#include "backend/cuda/exact.cuh"
#include "backend/cuda/mma.cuh"

namespace sluice::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kWarps = 8;  // of a block: one token each

__device__ bool is_rep(const ChunkView& view, int set, int64_t t) {
  return view.status[set * view.set_stride + view.first + t] ==
         static_cast<uint8_t>(TokenStatus::kRepresentative);
}

__device__ Pair pair_with_column(const ChunkView& view, int64_t t, int64_t column) {
  return {view.exact_columns, column, view.exact, t, view.d, view.bf16};
}
__device__ Pair pair_with_token(const ChunkView& view, int64_t t, int64_t s) {
  return {view.exact, s, view.exact, t, view.d, view.bf16};
}

__device__ const Largest& largest_of(const ChunkView& view, int set, int question, int split,
                                     int64_t t) {
  return view.largest[((int64_t{set} * 2 + question) * view.n_splits + split) * view.n + t];
}

// How many splits have columns; the others were not looked at.
__device__ int splits_with_columns(const ChunkView& view) {
  return min(view.n_splits, (*view.n_columns + view.tile_columns - 1) / view.tile_columns);
}

// Calls visit(split, largest) for the splits whose largest cosine is at least this, until it
// returns true.
template <typename Visit>
__device__ bool any_split(const ChunkView& view, int set, int question, int64_t t, double least,
                          const Visit& visit) {
  const int lane = static_cast<int>(threadIdx.x) % 32, n = splits_with_columns(view);
  for (int first = 0; first < n; first += 32) {
    const bool counts =
        first + lane < n && largest_of(view, set, question, first + lane, t).first >= least;
    for (uint32_t bits = __ballot_sync(kAll, counts); bits != 0; bits &= bits - 1) {
      const int split = first + __ffs(static_cast<int>(bits)) - 1;
      if (visit(split, largest_of(view, set, question, split, t))) return true;
    }
  }
  return false;
}

// Calls visit(column) for every column of a split that counts, until it returns true.
template <typename Visit>
__device__ bool any_column(const ChunkView& view, int set, uint8_t mask, int split,
                           const Visit& visit) {
  const int64_t n_columns = *view.n_columns;
  for (int64_t first = int64_t{split} * view.tile_columns; first < n_columns;
       first += int64_t{view.n_splits} * view.tile_columns)
    for (int64_t c = first; c < n_columns && c < first + view.tile_columns; ++c)
      if ((view.flags[set * view.capacity + c] & mask) != 0 && visit(c)) return true;
  return false;
}

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

// Bits of the chunk's earlier tokens at the threshold; whether there are any.
__device__ bool find_conflicts(const ChunkView& view, int set, int64_t t, uint32_t* words) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const double threshold = view.thresholds[set];
  bool any = false;
  for (int word = 0; word < kWords; ++word) {
    const int64_t s = int64_t{word} * 32 + lane;
    bool conflict = false, doubtful = false;
    if (s < t && view.exempt[s] == 0) {
      const float cosine = view.local[t * kChunk + s];
      const double size = view.rule.absolute ? fabsf(cosine) : cosine;
      conflict = size >= threshold + view.slack;
      doubtful = !conflict && size >= threshold - view.slack;
    }
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
  return any;
}

__global__ void judge(const __grid_constant__ ChunkView view) {
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int set = static_cast<int>(blockIdx.y);
  if (t >= view.n) return;
  const bool inherited = view.inherited[set * view.n + t] != 0;
  Verdict verdict = kFree;
  if (view.exempt[t] == 0 && view.thresholds[set] > 0) {
    if (view.rule.fixed)
      verdict = inherited ? kFree : kBlocked;
    else if (blocked_by_columns(view, set, t, inherited))
      verdict = kBlocked;
    else if (find_conflicts(view, set, t, view.conflicts + (set * view.n + t) * kWords))
      verdict = kContested;
  }
  if (threadIdx.x % 32 == 0) view.verdict[set * view.n + t] = verdict;
}

// Bits of a chunk's tokens, two words to a lane.
struct TokenBits {
  uint32_t low = 0, high = 0;
  __device__ void put(int word, uint32_t bits) {
    const int lane = static_cast<int>(threadIdx.x);
    if (word == lane) low = bits;
    if (word == lane + 32) high = bits;
  }
};

// One block per set, one warp decides: a token is a representative when no bit of its conflicts is
// among those that count for it. The other warps fetch the next 32 tokens' bits meanwhile.
constexpr int kResolveThreads = 256;

__global__ void resolve(const __grid_constant__ ChunkView view) {
  __shared__ __align__(16) uint32_t conflicts[2][32][kWords];
  const int set = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
  const bool all_represent = view.thresholds[set] <= 0;
  const auto fetch = [&](int group) {
    for (int i = static_cast<int>(threadIdx.x); i < 32 * kWords / 4; i += kResolveThreads) {
      const int row = i / (kWords / 4), piece = i % (kWords / 4);
      const int64_t t = int64_t{group} * 32 + row;
      const bool exists = t < view.n;
      copy_async(&conflicts[group % 2][row][piece * 4],
                 view.conflicts + (set * view.n + (exists ? t : 0)) * kWords + piece * 4, exists);
    }
    commit_copies();
  };
  TokenBits reps, kept, inherited, compared;
  const int n_groups = static_cast<int>((view.n + 31) / 32);
  fetch(0);
  for (int group = 0; group < n_groups; ++group) {
    wait_copies<0>();
    __syncthreads();
    if (group + 1 < n_groups) fetch(group + 1);
    if (threadIdx.x >= 32) continue;
    const int64_t t = int64_t{group} * 32 + lane;
    const bool exists = t < view.n, exempt = exists && view.exempt[t] != 0;
    const bool counts = exists && !exempt;
    const uint8_t verdict = counts ? view.verdict[set * view.n + t] : uint8_t{kBlocked};
    const uint32_t inherited_bits =
        __ballot_sync(kAll, counts && view.inherited[set * view.n + t] != 0);
    inherited.put(group, inherited_bits);
    compared.put(group, __ballot_sync(kAll, counts));
    uint32_t rep_bits = __ballot_sync(kAll, counts && (all_represent || verdict == kFree));
    reps.put(group, rep_bits);
    kept.put(group, rep_bits & inherited_bits);
    uint32_t contested = __ballot_sync(kAll, !all_represent && verdict == kContested);
    for (; contested != 0; contested &= contested - 1) {
      const int bit = __ffs(static_cast<int>(contested)) - 1;
      const uint8_t mask = view.rule.deciding((inherited_bits >> bit & 1) != 0);
      const TokenBits& counting = mask == kIsRep         ? reps
                                  : mask == kIsKept      ? kept
                                  : mask == kIsInherited ? inherited
                                                         : compared;
      const uint32_t* row = conflicts[group % 2][bit];
      if (__any_sync(kAll, ((row[lane] & counting.low) | (row[lane + 32] & counting.high)) != 0))
        continue;
      rep_bits |= 1u << bit;
      reps.put(group, rep_bits);
      kept.put(group, rep_bits & inherited_bits);
    }
    const TokenStatus status = exempt                        ? TokenStatus::kExempt
                               : (rep_bits >> lane & 1) != 0 ? TokenStatus::kRepresentative
                                                             : TokenStatus::kRedundant;
    if (exists) view.status[set * view.set_stride + view.first + t] = static_cast<uint8_t>(status);
  }
}

// The nearest representative so far, among candidates seen one after the other.
struct Nearest {
  int64_t position = -1;
  double cosine = -INFINITY;
  bool ordered = false;  // how it was summed
  bool is_column = false;
  int64_t index = -1;  // of the column, or of the token in its chunk
};

__device__ Pair pair_of(const ChunkView& view, int64_t t, const Nearest& of) {
  return of.is_column ? pair_with_column(view, t, of.index) : pair_with_token(view, t, of.index);
}

__device__ void make_ordered(const ChunkView& view, int64_t t, Nearest& of) {
  if (!of.ordered) of.cosine = ordered_cosine(pair_of(view, t, of));
  of.ordered = true;
}

__device__ void consider(const ChunkView& view, int64_t t, Nearest& best, Nearest next) {
  next.cosine = quick_cosine(pair_of(view, t, next));
  if (best.position >= 0 && fabs(next.cosine - best.cosine) <= 2 * sum_error(view.d)) {
    make_ordered(view, t, best);
    make_ordered(view, t, next);
  }
  if (next.cosine > best.cosine || (next.cosine == best.cosine && next.position < best.position))
    best = next;
}

__device__ float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAll, x, step));
  return x;
}

// The owner's cosine as the products have it, or -INFINITY where nobody could be it.
__device__ float largest_product(const ChunkView& view, int set, int64_t t) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float largest = -INFINITY;
  for (int split = lane; split < splits_with_columns(view); split += 32)
    largest = fmaxf(largest, largest_of(view, set, 0, split, t).first);
  for (int64_t s = lane; s < t; s += 32)
    if (is_rep(view, set, s)) largest = fmaxf(largest, view.local[t * kChunk + s]);
  return warp_max(largest);
}

// Calls visit on every candidate that may be the nearest: within twice the slack of the largest.
template <typename Visit>
__device__ void for_contenders(const ChunkView& view, int set, int64_t t, double least,
                               const Visit& visit) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto column = [&](int64_t c) {
    visit(Nearest{view.position[c], 0, false, true, c});
    return false;
  };
  any_split(view, set, 0, t, least, [&](int split, const Largest& found) {
    if (found.third >= least) return any_column(view, set, kIsRep, split, column);
    column(found.column);
    return found.second >= least && column(found.second_column);
  });
  for (int64_t first = 0; first < t; first += 32) {
    const int64_t s = first + lane;
    uint32_t bits =
        __ballot_sync(kAll, s < t && is_rep(view, set, s) && view.local[t * kChunk + s] >= least);
    for (; bits != 0; bits &= bits - 1) {
      const int64_t token = first + __ffs(static_cast<int>(bits)) - 1;
      visit(Nearest{view.first + token, 0, false, false, token});
    }
  }
}

__global__ void owners(const __grid_constant__ ChunkView view) {
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int set = static_cast<int>(blockIdx.y);
  if (t >= view.n) return;
  const int64_t at = set * view.set_stride + view.first + t;
  int64_t owner = view.first + t;
  bool owned = true;
  double cosine = 1;
  if (view.status[at] == static_cast<uint8_t>(TokenStatus::kRedundant)) {
    const float largest = largest_product(view, set, t);
    const double threshold = view.thresholds[set];
    Nearest best;
    int n_contenders = 0;
    const double least = double{largest} - 2 * view.slack;
    if (largest > -INFINITY) {
      for_contenders(view, set, t, least, [&](const Nearest& next) {
        if (++n_contenders == 1) best = next;
      });
      const bool clear = fabs(double{largest} - threshold) > view.slack;
      if (n_contenders == 1 && clear && !view.want_cosines) {
        best.cosine = largest;
      } else {
        best = {};
        for_contenders(view, set, t, least,
                       [&](const Nearest& next) { consider(view, t, best, next); });
        if (view.want_cosines || fabs(best.cosine - threshold) <= sum_error(view.d))
          make_ordered(view, t, best);
      }
      owner = best.position;
    }
    owned = best.position >= 0 && best.cosine >= threshold;
    cosine = best.position >= 0 ? best.cosine : -1.0;
  }
  if (threadIdx.x % 32 != 0) return;
  view.owner[at] = static_cast<int32_t>(owner);
  if (!owned) view.status[at] = static_cast<uint8_t>(TokenStatus::kUncovered);
  if (view.want_cosines) view.cosine[at] = static_cast<float>(cosine);
}

dim3 tokens_by_sets(const ChunkView& view) {
  return {static_cast<unsigned>(ceil_div(view.n, kWarps)), static_cast<unsigned>(view.n_sets)};
}

}  // namespace

void judge_chunk(Context& context, const ChunkView& view) {
  judge<<<tokens_by_sets(view), 32 * kWarps, 0, context.stream()>>>(view);
  check_launch("judge");
}

void resolve_chunk(Context& context, const ChunkView& view) {
  resolve<<<static_cast<unsigned>(view.n_sets), kResolveThreads, 0, context.stream()>>>(view);
  check_launch("resolve");
}

void find_owners(Context& context, const ChunkView& view) {
  owners<<<tokens_by_sets(view), 32 * kWarps, 0, context.stream()>>>(view);
  check_launch("owners");
}

}  // namespace sluice::cuda
