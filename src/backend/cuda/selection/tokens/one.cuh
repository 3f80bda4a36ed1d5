// What becomes of a token by itself (selection/tokens/one.cu), when its products with all kept
// columns are there: by one block.

#pragma once

#include "backend/cuda/selection/common/nearest.cuh"
#include "backend/cuda/selection/common/outliers.cuh"

namespace sluice::impl::cuda::selection::one {

constexpr int kThreads = 256, kWarps = kThreads / 32;
static_assert(kThreads == kMedianTokens);

struct Decision {
  SortedNorms norms;
  bool exempt;
  float largest[kWarps];
  int contenders[64], n_contenders;
  int64_t owner;  // its position, -1 where there is none
  double cosine;
};

// Cosines, when the token's norm is known; what f32 may not hold is summed again.
__device__ inline void finish_cosines(const OneView& one, float* cosines) {
  const ChunkView& view = one.keep.chunk;
  const double inverse = view.rows.exact.inverse[0];
  const int n = *view.kept.n;
  const auto rescue = [&](int64_t c) {
    return inverse != 0 && (is_odd(inverse) || is_odd(view.kept.exact.inverse[c]));
  };
  for (int first = static_cast<int>(threadIdx.x) / 32 * 32; first < n; first += kThreads) {
    const int c = first + static_cast<int>(threadIdx.x) % 32;
    const bool again = c < n && rescue(c);
    if (c < n && !again)
      cosines[c] = inverse == 0 ? 0.0f : __ldcg(one.cosines + c) * static_cast<float>(inverse);
    for (unsigned rest = __ballot_sync(kAllLanes, again); rest != 0; rest &= rest - 1) {
      const int64_t at = first + __ffs(static_cast<int>(rest)) - 1;
      const Cosine cosine = quick_cosine(pair_with_column(view, 0, at));
      if (threadIdx.x % 32 == 0) cosines[at] = static_cast<float>(cosine.value);
    }
  }
  __syncthreads();
}

// Whether a column that counts is at the threshold.
__device__ inline bool is_blocked(const OneView& one, const float* cosines, int set,
                                  bool inherited) {
  const ChunkView& view = one.keep.chunk;
  const uint8_t* flags = view.kept.flags + set * view.kept.capacity;
  const uint8_t mask = view.rule.deciding(inherited);
  const double threshold = view.thresholds[set], error = rough_error(view.d);
  const int n = *view.kept.n;
  const auto size_at = [&](int c) { return view.rule.absolute ? fabsf(cosines[c]) : cosines[c]; };
  bool sure = false, doubtful = false;
  for (int c = static_cast<int>(threadIdx.x); c < n; c += kThreads) {
    if ((flags[c] & mask) == 0) continue;
    sure |= size_at(c) >= threshold + error;
    doubtful |= size_at(c) >= threshold - error;
  }
  if (__syncthreads_or(sure ? 1 : 0) != 0) return true;
  if (__syncthreads_or(doubtful ? 1 : 0) == 0) return false;
  bool found = false;
  for (int first = static_cast<int>(threadIdx.x) / 32 * 32; first < n && !found;
       first += kThreads) {
    const int c = first + static_cast<int>(threadIdx.x) % 32;
    const bool asks = c < n && (flags[c] & mask) != 0 && size_at(c) >= threshold - error;
    for (unsigned rest = __ballot_sync(kAllLanes, asks); rest != 0 && !found; rest &= rest - 1)
      found = reaches_exactly(pair_with_column(view, 0, first + __ffs(static_cast<int>(rest)) - 1),
                              view.rule.absolute, threshold);
  }
  return __syncthreads_or(found ? 1 : 0) != 0;
}

// The representative that is nearest, in memory.owner.
__device__ inline void find_owner(const OneView& one, const float* cosines, int set,
                                  Decision& memory) {
  const ChunkView& view = one.keep.chunk;
  const uint8_t* flags = view.kept.flags + set * view.kept.capacity;
  const double threshold = view.thresholds[set], error = rough_error(view.d);
  const int n = *view.kept.n, lane = static_cast<int>(threadIdx.x) % 32;
  const auto is_rep = [&](int c) { return (flags[c] & kIsRep) != 0; };
  float largest = -INFINITY;
  for (int c = static_cast<int>(threadIdx.x); c < n; c += kThreads)
    if (is_rep(c)) largest = fmaxf(largest, cosines[c]);
  for (int step = 16; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
  if (lane == 0) memory.largest[threadIdx.x / 32] = largest;
  if (threadIdx.x == 0) {
    memory.n_contenders = 0;
    memory.owner = -1;
    memory.cosine = -1;
  }
  __syncthreads();
  for (const float other : memory.largest) largest = fmaxf(largest, other);
  if (largest == -INFINITY) return;
  const double least = double{largest} - 2 * error;
  constexpr int kRoom = sizeof(memory.contenders) / sizeof(int);
  for (int c = static_cast<int>(threadIdx.x); c < n; c += kThreads)
    if (is_rep(c) && cosines[c] >= least) {
      const int at = atomicAdd(&memory.n_contenders, 1);
      if (at < kRoom) memory.contenders[at] = c;
    }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const int n_contenders = memory.n_contenders;
  const auto column = [&](int c) {
    return Nearest{.position = view.kept.position[c], .is_column = true, .index = c};
  };
  Nearest best;
  if (n_contenders == 1 && fabs(largest - threshold) > error && !view.want_cosines) {
    best = column(memory.contenders[0]);
    best.cosine = largest;
  } else {
    if (n_contenders <= kRoom)
      for (int i = 0; i < n_contenders; ++i) consider(view, 0, best, column(memory.contenders[i]));
    else
      for (int c = 0; c < n; ++c)
        if (is_rep(c) && cosines[c] >= least) consider(view, 0, best, column(c));
    if (view.want_cosines || fabs(best.cosine - threshold) <= best.error)
      make_ordered(view, 0, best);
  }
  if (lane != 0) return;
  memory.owner = best.position;
  memory.cosine = best.cosine;
}

// The token in one set; whether later ones are compared with it there, by its flags.
__device__ inline uint8_t decide_in(const OneView& one, const float* cosines, int set,
                                    Decision& memory) {
  const KeepView& keep = one.keep;
  const ChunkView& view = keep.chunk;
  const bool inherited = view.is_inherited(set, 0), live = view.thresholds[set] > 0;
  auto status = TokenStatus::kRepresentative;
  if (memory.exempt) {
    status = TokenStatus::kExempt;
  } else if (live) {
    const bool redundant = view.rule.fixed ? !inherited : is_blocked(one, cosines, set, inherited);
    if (redundant) {
      find_owner(one, cosines, set, memory);
      status = TokenStatus::kRedundant;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const int64_t base = set * view.sets.stride, at = base + view.first;
    const int before = keep.before[1 + set];
    int64_t owner = view.first;
    double cosine = 1;
    int cluster = before;
    if (status == TokenStatus::kRedundant) {
      if (memory.owner >= 0) owner = memory.owner;
      cosine = memory.cosine;
      if (memory.owner >= 0 && cosine >= view.thresholds[set])
        cluster = view.sets.cluster[base + owner];
      else
        status = TokenStatus::kUncovered;
    }
    view.sets.status[at] = static_cast<uint8_t>(status);
    view.sets.owner[at] = static_cast<int32_t>(owner);
    view.sets.cluster[at] = cluster;
    if (view.want_cosines) view.sets.cosine[at] = static_cast<float>(cosine);
    keep.after[1 + set] = before + (status == TokenStatus::kRedundant ? 0 : 1);
  }
  __syncthreads();  // the owner is read
  if (memory.exempt || !live) return 0;
  const bool rep = status == TokenStatus::kRepresentative;
  return column_flags(rep, inherited);
}

// By the last block. room: shared memory for n_room cosines; more stay where they are.
__device__ inline void decide(const OneView& one, Decision& memory, float* room, int n_room) {
  const KeepView& keep = one.keep;
  const ChunkView& view = keep.chunk;
  bool exempt = view.first < one.exempt.sinks;
  if (one.exempt.residual_inverse != nullptr)
    exempt |= is_outlier(one.exempt, threadIdx.x, memory.norms,
                         sort_norms(one.exempt, memory.norms, true));
  if (threadIdx.x == 0) memory.exempt = exempt;
  __syncthreads();
  float* cosines = *view.kept.n <= n_room ? room : one.cosines;
  finish_cosines(one, cosines);
  const int to = keep.before[0];  // the column it may become
  const uint8_t used = view.rule.used();
  bool kept = false;
  for (int set = 0; set < view.n_sets; ++set) {
    const uint8_t flags = decide_in(one, cosines, set, memory);
    kept |= (flags & used) != 0;
    if (threadIdx.x == 0 && to < view.kept.capacity)
      keep.flags[set * view.kept.capacity + to] = flags;
  }
  if (threadIdx.x == 0) {
    keep.after[0] = *keep.host_columns = to + (kept ? 1 : 0);
    bool live = false;
    for (int set = 0; set < view.n_sets; ++set) live |= view.thresholds[set] > 0;
    if (live) *keep.products += to;
  }
  if (!kept) return;
  const double inverse = view.rows.exact.inverse[0], power = range_scale(inverse);
  const double rest = inverse > 0 ? inverse / power : 0.0;
  if (threadIdx.x == 0) {
    keep.position[to] = static_cast<int32_t>(view.first);
    keep.column_scale[to] = static_cast<float>(rest);
    keep.column_inverse[to] = view.bf16 ? rest : inverse;
  }
  const ConstRowsView row{static_cast<const std::byte*>(view.rows.exact.data), 0, view.bf16};
  const RowsView column{reinterpret_cast<std::byte*>(keep.columns + to * view.padded), 0, true};
  for (int64_t i = int64_t{8} * threadIdx.x; i < view.padded; i += int64_t{8} * kThreads) {
    float x[8] = {};
    if (i < view.d) load<8>(row, 0, i, x);
    if (i < view.d && keep.exact_columns != nullptr)
      for (int k = 0; k < 8; ++k) keep.exact_columns[to * view.d + i + k] = x[k];
    for (int k = 0; k < 8; ++k)
      x[k] = inverse > 0 ? static_cast<float>(double{x[k]} * power) : 0.0f;
    store<8>(column, 0, i, x);
  }
}

}  // namespace sluice::impl::cuda::selection::one
