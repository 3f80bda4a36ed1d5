// Which tokens of a chunk are marked, and how many of them before any: a table in shared memory
// that every block of a kernel makes for itself, so that no block waits for another.

#pragma once

#include "backend/cuda/selection/common/exact.cuh"

namespace sluice::impl::cuda::selection {

constexpr int kTableThreads = 512, kTableWarps = kTableThreads / 32;
static_assert(kCoverChunk == 32 * kTableThreads && kCoverChunk >= kChunk);

// Four bytes that are 0 or not as four bits.
__device__ inline uint32_t bits_of_bytes(uint32_t bytes) {
  return (bytes & 0x01010101u) * 0x01020408u >> 24 & 15;
}

// A thread's 32 tokens, a bit for each of n whose byte has a value.
__device__ inline uint32_t bits_equal(const uint8_t* bytes, int64_t n, uint8_t value) {
  const int64_t first = int64_t{threadIdx.x} * 32;
  const uint8_t* from = bytes + first;
  uint32_t bits = 0;
  if (first + 32 <= n && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    const uint4 low = *reinterpret_cast<const uint4*>(from);
    const uint4 high = *reinterpret_cast<const uint4*>(from + 16);
    const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      bits |= bits_of_bytes(__vcmpeq4(words[i], value * 0x01010101u)) << 4 * i;
  } else {
#pragma unroll 8
    for (int i = 0; i < 32; ++i)
      if (first + i < n && from[i] == value) bits |= 1u << i;
  }
  return bits;
}

__device__ inline uint32_t bits_inherited(const ChunkView& view, int set) {
  const uint8_t* from = view.rows.inherited + set * view.n;
  return bits_equal(from, view.n, static_cast<uint8_t>(TokenStatus::kRepresentative)) |
         bits_equal(from, view.n, static_cast<uint8_t>(TokenStatus::kExempt));
}

struct TokenTable {
  static constexpr int kWords = kCoverChunk / 32;
  uint32_t words[kWords];             // bits of tokens
  int before[kWords];                 // marked tokens before a word's first
  alignas(16) int sums[kTableWarps];  // read in fours
  int total;

  // By a block of kTableThreads, each of which has the bits of 32 tokens.
  __device__ void fill(uint32_t bits) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int mine = __popc(bits);
    int upto = mine;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, upto, step);
      if (lane >= step) upto += other;
    }
    __syncthreads();  // whoever reads the last table is done
    if (lane == 31) sums[warp] = upto;
    __syncthreads();
    int at = upto - mine, all = 0;
#pragma unroll
    for (int w = 0; w < kTableWarps; ++w) {
      if (w < warp) at += sums[w];
      all += sums[w];
    }
    words[threadIdx.x] = bits;
    before[threadIdx.x] = at;
    if (threadIdx.x == 0) total = all;
    __syncthreads();
  }

  // The marked token that so many are before; by a warp.
  __device__ int token(int rank) const {
    constexpr int kStep = kWords / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int step = __popc(__ballot_sync(kAllLanes, before[lane * kStep] <= rank)) - 1;
    const bool begins = lane < kStep && before[step * kStep + lane % kStep] <= rank;
    const int word = step * kStep + __popc(__ballot_sync(kAllLanes, begins)) - 1;
    const uint32_t bits = words[word];
    const bool is_it =
        (bits >> lane & 1) != 0 && __popc(bits & ((1u << lane) - 1)) == rank - before[word];
    return word * 32 + __ffs(static_cast<int>(__ballot_sync(kAllLanes, is_it))) - 1;
  }
  __device__ bool has(int64_t t) const { return (words[t / 32] >> t % 32 & 1) != 0; }
  __device__ int rank(int64_t t) const {
    return before[t / 32] + __popc(words[t / 32] & ((1u << t % 32) - 1));
  }
};

// Blocks that share the tokens of a chunk.
struct TableBlocks {
  int number, count;  // this one's, of so many

  __device__ static TableBlocks all() {
    return {static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)};
  }
  __device__ bool is_first() const { return number == 0; }

  // Tokens, one per thread. Neighbouring groups of 32 go to different blocks, so that a few tokens
  // are spread over blocks.
  template <typename Visit>
  __device__ void for_tokens(int64_t n, const Visit& visit) const {
    const int64_t warp = threadIdx.x / 32;
    for (int64_t t = (warp * count + number) * 32 + threadIdx.x % 32; t < n;
         t += int64_t{kTableThreads} * count)
      visit(t);
  }
  // The same, a warp to each.
  template <typename Visit>
  __device__ void for_rows(int64_t n, const Visit& visit) const {
    const int64_t warp = threadIdx.x / 32;
    for (int64_t t = warp * count + number; t < n; t += int64_t{kTableWarps} * count) visit(t);
  }
  // Marked tokens, a warp to each kPieceWidth of so many numbers of their rows:
  // visit(token, rank, first number, how many). The last warps begin, the first ones have tokens.
  static constexpr int kPieceWidth = 8 * 32 * 8;
  template <typename Visit>
  __device__ void for_pieces(const TokenTable& table, int64_t width, const Visit& visit) const {
    const int warp = kTableWarps - 1 - static_cast<int>(threadIdx.x) / 32;
    const auto all = static_cast<int>(width);
    const int pieces = (all + kPieceWidth - 1) / kPieceWidth;
    for (int i = warp * count + number; i < table.total * pieces; i += kTableWarps * count) {
      const int first = i % pieces * kPieceWidth;
      visit(int64_t{table.token(i / pieces)}, int64_t{i / pieces}, first,
            min(kPieceWidth, all - first));
    }
  }
  template <typename T>
  __device__ void clear(T* to, int64_t n) const {
    for (int64_t i = int64_t{number} * kTableThreads + threadIdx.x; i < n;
         i += int64_t{kTableThreads} * count)
      to[i] = 0;
  }
};

// Blocks of kTableThreads for n tokens, as many as run together.
inline dim3 table_blocks(const Context& context, int64_t n) {
  const int64_t most = 2 * context.multiprocessors(), wanted = ceil_div(n, kTableWarps);
  return dim3(static_cast<unsigned>(wanted < most ? wanted : most));
}

// By a warp; width a multiple of 8, rows aligned to 16 bytes. A lane has kAhead loads in flight.
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

}  // namespace sluice::impl::cuda::selection
