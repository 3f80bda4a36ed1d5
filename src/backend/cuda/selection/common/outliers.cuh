// Tokens whose residual stream is much longer than that of the first ones.

#pragma once

#include "backend/cuda/selection/common/exact.cuh"

namespace sluice::impl::cuda::selection {

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

__device__ inline double norm_of(double inverse) { return inverse > 0 ? 1 / inverse : 0.0; }

// The first norms: those in `state`, by position, and those of these tokens. Every block sorts them
// for itself, thread i finding the place of the i-th. Behind them the median stands still, and is
// kept; it is returned.
__device__ inline double sort_norms(const ExemptArgs& args, SortedNorms& memory, bool keeps) {
  const int i = static_cast<int>(threadIdx.x);
  double* state = args.state;
  const int64_t n_sinks = min(args.n, max(int64_t{0}, args.sinks - args.first));  // of these
  const auto n_old = static_cast<int>(min(kMedianTokens, max(int64_t{0}, args.first - args.sinks)));
  const auto n_all = static_cast<int>(min(kMedianTokens, n_old + args.n - n_sinks));
  if (n_old == kMedianTokens) return state[kMedianTokens];
  double mine = INFINITY;
  if (i < kMedianTokens) {
    if (i < n_all)
      mine = i < n_old ? state[i] : norm_of(args.residual_inverse[n_sinks + i - n_old]);
    memory.norms[i] = mine;
    if (keeps && i >= n_old && i < n_all) state[i] = mine;
  }
  __syncthreads();
  if (i < kMedianTokens) {
    int place = 0;
#pragma unroll 8
    for (int k = 0; k < kMedianTokens; ++k)
      place += memory.norms[k] < mine || (memory.norms[k] == mine && k < i) ? 1 : 0;
    memory.sorted[place] = mine;
    memory.order[place] = static_cast<uint8_t>(i);
  }
  __syncthreads();
  constexpr int kMiddle = kMedianTokens / 2;
  const double settled = (memory.sorted[kMiddle - 1] + memory.sorted[kMiddle]) / 2;
  if (keeps && i == 0 && n_old < n_all && n_all == kMedianTokens) state[kMedianTokens] = settled;
  return settled;
}

// A token's norm, its squares summed in order; by a thread, since that is rare.
__device__ inline double ordered_norm(const ExemptArgs& args, int64_t t) {
  const ConstRowsView rows{static_cast<const std::byte*>(args.residual), args.residual_stride,
                           args.residual_bf16};
  double sum = 0;
#pragma unroll 8
  for (int64_t i = 0; i < args.d; ++i) {
    float x[1];
    load<1>(rows, t, i, x);
    sum = fma(double{x[0]}, double{x[0]}, sum);  // as a sum rounds: the square is exact
  }
  return norm_of(inverse_of(sum));
}

// A token is compared with the median up to it. `settled`: of the first norms.
__device__ inline bool is_outlier(const ExemptArgs& args, int64_t t, const SortedNorms& memory,
                                  double settled) {
  const int64_t number = args.first + t - args.sinks;
  if (t >= args.n || number < 0) return false;
  const bool first = number < kMedianTokens;
  const double norm = norm_of(args.residual_inverse[t]);
  const double limit =
      args.ratio * (first ? median_upto(memory, static_cast<int>(number)) : settled);
  const bool sure =
      first || args.residual == nullptr || fabs(norm - limit) >= norm_error(args.d) * limit;
  return (sure ? norm : ordered_norm(args, t)) > limit;
}

// Marks tokens: block number `block` of n_blocks.
__device__ inline void mark_exempt(const ExemptArgs& args, SortedNorms& memory, int block,
                                   int n_blocks) {
  const bool outliers = args.residual_inverse != nullptr;
  const double settled = outliers ? sort_norms(args, memory, block == 0) : 0;
  for (int64_t t = int64_t{block} * blockDim.x + threadIdx.x; t < args.n;
       t += int64_t{n_blocks} * blockDim.x)
    args.exempt[t] =
        args.first + t < args.sinks || (outliers && is_outlier(args, t, memory, settled)) ? 1 : 0;
}

}  // namespace sluice::impl::cuda::selection
