// The places of members, as a block that finds their running means looks at them.

#pragma once

#include "backend/cuda/attention/keys/columns.cuh"

namespace sluice::impl::cuda::keys {

__device__ inline int32_t token_of(int32_t marked) {
  return static_cast<int32_t>(static_cast<uint32_t>(marked) / kMarks);
}

// The places of the segments that begin among kSegment places: the last ends before twice as many.
struct MemberPlaces {
  static_assert(kColumnThreads == 2 * kSegment);
  uint32_t begins[kColumnThreads / 32];  // bits
  int32_t marked[kColumnThreads], codes[kColumnThreads];
  float shares[kColumnThreads];  // of a member in the mean up to it

  // Every thread looks at one.
  __device__ void look(const MembersView& members, const TokenRows& tokens, int64_t first) {
    const int64_t p = first + threadIdx.x;
    const int32_t mark = p < members.n ? members.marked[p] : 0;
    const int32_t count = p < members.n ? members.counts_there[p] : 1;
    marked[threadIdx.x] = mark;
    codes[threadIdx.x] = row_code(tokens, members.first + token_of(mark));
    shares[threadIdx.x] = 1 / static_cast<float>(count);
    const uint32_t bits = __ballot_sync(0xffffffffu, (mark & kBegins) != 0);
    if (threadIdx.x % 32 == 0) begins[threadIdx.x / 32] = bits;
    __syncthreads();
  }
  // The first from `from` on, a multiple of 32, that begins one.
  __device__ int next(int from) const {
    for (int i = from / 32; i < kColumnThreads / 32; ++i)
      if (begins[i] != 0) return 32 * i + __ffs(static_cast<int>(begins[i])) - 1;
    return kColumnThreads;
  }
};

}  // namespace sluice::impl::cuda::keys
