// Which tokens of a chunk are marked, and how many of them before any: a table in shared memory
// that every block of a kernel makes for itself, so that no block waits for another.

#pragma once

#include "backend/cuda/exact.cuh"

namespace sluice::cuda {

constexpr int kTableThreads = 512, kTableWarps = kTableThreads / 32;
constexpr int kTableRounds = kCoverChunk / kTableThreads;
static_assert(kCoverChunk >= kChunk && kTableRounds <= 32);

// Bit k for those of a thread's tokens, k kTableThreads further each, that a function of a token
// holds for. What it reads is on the way for all of them together.
template <typename Holds>
__device__ uint32_t bits_where(int64_t n, const Holds& holds) {
  bool found[kTableRounds];
#pragma unroll
  for (int k = 0; k < kTableRounds; ++k) {
    const int64_t t = int64_t{k} * kTableThreads + threadIdx.x;
    found[k] = t < n && holds(t);
  }
  uint32_t bits = 0;
#pragma unroll
  for (int k = 0; k < kTableRounds; ++k) bits |= found[k] ? 1u << k : 0;
  return bits;
}

struct TokenTable {
  static constexpr int kWords = kCoverChunk / 32;
  uint32_t words[kWords];  // bits of tokens
  int before[kWords];      // marked tokens before a word's first
  int total;

  // By a block of kTableThreads; bits as bits_where gives them.
  __device__ void fill(uint32_t bits) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    __syncthreads();  // whoever reads the last table is done
#pragma unroll
    for (int k = 0; k < kTableRounds; ++k) {
      const uint32_t votes = __ballot_sync(0xffffffffu, (bits >> k & 1) != 0);
      if (lane == 0) words[k * kTableWarps + warp] = votes;
    }
    __syncthreads();
    if (warp == 0) {  // some words that follow each other to a lane
      constexpr int kEach = kWords / 32;
      int sum = 0;
      for (int i = 0; i < kEach; ++i) sum += __popc(words[kEach * lane + i]);
      int upto = sum;
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, upto, step);
        if (lane >= step) upto += other;
      }
      if (lane == 31) total = upto;
      for (int i = 0, at = upto - sum; i < kEach; ++i) {
        before[kEach * lane + i] = at;
        at += __popc(words[kEach * lane + i]);
      }
    }
    __syncthreads();
  }

  __device__ bool has(int64_t t) const { return (words[t / 32] >> t % 32 & 1) != 0; }
  __device__ int rank(int64_t t) const {
    return before[t / 32] + __popc(words[t / 32] & ((1u << t % 32) - 1));
  }
};

// The tokens of a chunk, a warp to each.
template <typename Visit>
__device__ void for_tokens(int64_t n, const Visit& visit) {
  for (int64_t t = int64_t{blockIdx.x} * kTableWarps + threadIdx.x / 32; t < n;
       t += int64_t{gridDim.x} * kTableWarps)
    visit(t);
}

// Blocks of kTableThreads for n tokens, as many as run together.
inline dim3 table_blocks(const Context& context, int64_t n) {
  const int64_t most = 2 * context.multiprocessors(), wanted = ceil_div(n, kTableWarps);
  return dim3(static_cast<unsigned>(wanted < most ? wanted : most));
}

// By a warp; width a multiple of 8, rows from 16 bytes on.
__device__ inline void copy_row(uint16_t* to, const uint16_t* from, int64_t width) {
  constexpr int kAhead = 8;
  const auto* source = reinterpret_cast<const uint4*>(from);
  auto* target = reinterpret_cast<uint4*>(to);
  for (int64_t i = threadIdx.x % 32; i < width / 8; i += kAhead * 32) {
    uint4 pieces[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (i + k * 32 < width / 8) pieces[k] = source[i + k * 32];
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (i + k * 32 < width / 8) target[i + k * 32] = pieces[k];
  }
}

}  // namespace sluice::cuda
