// Tokens whose residual stream is much longer than that of the first ones.

#pragma once

#include "backend/cuda/select_kernels.h"

namespace sluice::cuda {

constexpr int kMedianTokens = 256;
static_assert(kMedianState == kMedianTokens + 1);

// The first norms, sorted.
struct SortedNorms {
  double norms[kMedianTokens];  // by position
  double sorted[kMedianTokens];
  __align__(16) uint8_t order[kMedianTokens];  // by place: number of the token
};

// Half the sum of the two in the middle, of tokens up to `last`.
__device__ inline double median_upto(const SortedNorms& memory, int last) {
  const auto* order = reinterpret_cast<const uint4*>(memory.order);
  const uint32_t limit = static_cast<uint32_t>(last) * 0x01010101u;
  // The lower and the upper one: the word of four places that it is in, and how many of these are
  // before it.
  int word[2] = {0, 0}, before[2] = {0, 0}, seen = 0;
#pragma unroll 4
  for (int k = 0; k < kMedianTokens / 16; ++k) {
    const uint32_t words[4] = {order[k].x, order[k].y, order[k].z, order[k].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int which = 0; which < 2; ++which)
        if (seen <= (last + which) / 2) {
          word[which] = 4 * k + j;
          before[which] = seen;
        }
      seen += __popc(__vcmpleu4(words[j], limit)) / 8;
    }
  }
  double sum = 0;
#pragma unroll
  for (int which = 0; which < 2; ++which)
    for (int j = 0, at = before[which]; j < 4; ++j) {
      const int place = 4 * word[which] + j;
      if (memory.order[place] > last) continue;
      if (at == (last + which) / 2) sum += memory.sorted[place];
      ++at;
    }
  return sum / 2;
}

// A token is compared with the median up to it of the first norms: those in `state`, by position,
// and those of this pass. Every block sorts them for itself, thread i finding the place of the
// i-th. Behind them the median stands still, and is kept.
__device__ inline bool is_outlier(const ExemptArgs& args, int64_t t, SortedNorms& memory,
                                  bool keeps) {
  const int i = static_cast<int>(threadIdx.x);
  double* state = args.state;
  const int64_t n_sinks = min(args.n, max(int64_t{0}, args.sinks - args.first));  // of this pass
  const auto n_old =
      static_cast<int>(min(int64_t{kMedianTokens}, max(int64_t{0}, args.first - args.sinks)));
  const auto n_all = static_cast<int>(min(int64_t{kMedianTokens}, n_old + args.n - n_sinks));
  const auto norm_at = [&](int64_t of) {
    const double inverse = args.residual_inverse[of];
    return inverse > 0 ? 1 / inverse : 0.0;
  };
  if (n_old < kMedianTokens) {
    const double mine = i < n_old ? state[i] : i < n_all ? norm_at(n_sinks + i - n_old) : INFINITY;
    memory.norms[i] = mine;
    if (keeps && i >= n_old && i < n_all) state[i] = mine;
    __syncthreads();
    int place = 0;
#pragma unroll 8
    for (int k = 0; k < kMedianTokens; ++k)
      place += memory.norms[k] < mine || (memory.norms[k] == mine && k < i) ? 1 : 0;
    memory.sorted[place] = mine;
    memory.order[place] = static_cast<uint8_t>(i);
    __syncthreads();
  }
  constexpr int kMiddle = kMedianTokens / 2;
  const double settled = n_old == kMedianTokens
                             ? state[kMedianTokens]
                             : (memory.sorted[kMiddle - 1] + memory.sorted[kMiddle]) / 2;
  if (keeps && i == 0 && n_old < n_all && n_all == kMedianTokens) state[kMedianTokens] = settled;
  const int64_t number = args.first + t - args.sinks;
  if (t >= args.n || number < 0) return false;
  const double median =
      number < kMedianTokens ? median_upto(memory, static_cast<int>(number)) : settled;
  return norm_at(t) > args.ratio * median;
}

}  // namespace sluice::cuda
