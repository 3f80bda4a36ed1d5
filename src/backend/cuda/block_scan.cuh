// What the threads of a block before mine hold.

#pragma once

#include <cstdint>

namespace sluice::cuda {

// Threads of this block before mine for which `flag` holds; *all: how many there are in the block.
// shared: one place per warp.
__device__ inline int place_among(bool flag, int* shared, int* all) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t votes = __ballot_sync(0xffffffffu, flag);
  __syncthreads();  // whoever reads the last counts is done
  if (lane == 0) shared[warp] = __popc(votes);
  __syncthreads();
  int before = 0;
  *all = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) {
    if (w < warp) before += shared[w];
    *all += shared[w];
  }
  return before + __popc(votes & ((1u << lane) - 1));
}

// The sum over the threads of this block before mine. shared: one place per warp.
__device__ inline double sum_before(double value, double* shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  double up_to = value;
  for (int step = 1; step < 32; step *= 2) {
    const double other = __shfl_up_sync(0xffffffffu, up_to, step);
    if (lane >= step) up_to += other;
  }
  __syncthreads();  // whoever reads the last sums is done
  if (lane == 31) shared[warp] = up_to;
  __syncthreads();
  double before = up_to - value;
  for (int w = 0; w < warp; ++w) before += shared[w];
  return before;
}

// Thread i of a block of 1024 holds tokens i, i + 1024, …; bit k of `marked` is the k-th of them.
constexpr int kRankThreads = 1024;
__device__ inline int64_t rank_token(int k) { return int64_t{k} * kRankThreads + threadIdx.x; }
// Those of n tokens that a function holds for. What it reads is on the way for all rounds together.
template <int kRounds, typename Holds>
__device__ uint32_t bits_of_rounds(int64_t n, const Holds& holds) {
  bool found[kRounds];
#pragma unroll
  for (int k = 0; k < kRounds; ++k) found[k] = rank_token(k) < n && holds(rank_token(k));
  uint32_t bits = 0;
#pragma unroll
  for (int k = 0; k < kRounds; ++k) bits |= found[k] ? 1u << k : 0;
  return bits;
}
template <int kRounds>
struct Ranks {
  int of[kRounds];  // marked tokens before each, in order
  int total;
};
// shared: 32 kRounds + 1 places.
template <int kRounds>
__device__ Ranks<kRounds> rank_marked(uint32_t marked, int* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  uint32_t votes[kRounds];
  __syncthreads();  // whoever reads the last ranks is done
#pragma unroll
  for (int k = 0; k < kRounds; ++k) {
    votes[k] = __ballot_sync(0xffffffffu, (marked >> k & 1) != 0);
    if (lane == 0) shared[32 * k + warp] = __popc(votes[k]);
  }
  __syncthreads();
  if (warp == 0) {  // a lane adds up kRounds counts that follow each other
    int before[kRounds], sum = 0;
#pragma unroll
    for (int k = 0; k < kRounds; ++k) {
      before[k] = sum;
      sum += shared[kRounds * lane + k];
    }
    int upto = sum;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, upto, step);
      if (lane >= step) upto += other;
    }
#pragma unroll
    for (int k = 0; k < kRounds; ++k) shared[kRounds * lane + k] = upto - sum + before[k];
    if (lane == 31) shared[32 * kRounds] = upto;
  }
  __syncthreads();
  Ranks<kRounds> ranks;
#pragma unroll
  for (int k = 0; k < kRounds; ++k)
    ranks.of[k] = shared[32 * k + warp] + __popc(votes[k] & ((1u << lane) - 1));
  ranks.total = shared[32 * kRounds];
  return ranks;
}

}  // namespace sluice::cuda
