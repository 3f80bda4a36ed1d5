// Weights that a gate's block has in shared memory before it knows its row: two directions of V and
// its first rows of the image, copied in the background, by TMA where the GPU has it, which does
// not delay what other blocks load.

#pragma once

#include "backend/cuda/primitives/wgmma.cuh"
#include "backend/cuda/subspace/decision.cuh"

namespace sluice::impl::cuda::subspace {

constexpr int kChunks = 8;  // of 8 elements of a direction, to a thread
constexpr int kChunkWidth = 8 * kGateThreads;
constexpr int kPass = kChunks * kChunkWidth;  // elements of a direction that are there, at most

// As many, in whole chunks: behind the last element of a direction are zeros.
__host__ __device__ inline int staged_width(int n_in) {
  const int all = (n_in + kChunkWidth - 1) / kChunkWidth * kChunkWidth;
  return all < kPass ? all : kPass;
}

// TMA is asked for so many bytes at a time, and not again for so many cycles: somewhat
// faster than memory gives them. What was asked for at once would stand in line, and what the gate
// ahead of this one needs meanwhile, its row and its messages, behind it. On an H200 the four gates
// of a GPT-J block took 22.9 us at once, 19.0 with 25 or 50 cycles, 19.3, 20.4 and 21.0 with 100,
// 200 and 300.
constexpr int kPartBytes = 4 << 10, kPartCycles = 50;

// Copies that a block waits for once each.
class BlockCopy {
 public:
  // By all threads, and behind it a barrier before anything else is called.
  template <int kN>
  __device__ static void make(uint64_t (&arrived)[kN]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x != 0) return;
    for (uint64_t& copy : arrived) make_barrier(&copy, 1);
    publish_barriers();
#endif
  }
  __device__ static void begin(uint64_t* arrived, uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) arrive_and_expect(arrived, bytes);
#endif
  }
  // 16-byte pieces; together as many bytes as begin() was told.
  __device__ static void add(uint64_t* arrived, uint4* to, const std::byte* from, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x != 0) return;
    for (int at = 0; at < bytes; at += kPartBytes) {
      copy_bytes(to + at / 16, from + at, min(kPartBytes, bytes - at), arrived);
      const long long begin = clock64();
      while (clock64() - begin < kPartCycles) {
      }
    }
#else
    for (int i = static_cast<int>(threadIdx.x); i < bytes / 16; i += kGateThreads)
      copy_async(to + i, from + 16 * i, true);
#endif
  }
  // By all threads.
  __device__ static void wait(uint64_t* arrived) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    wait_barrier(arrived, 0);
#else
    asm volatile("cp.async.wait_all;\n" ::: "memory");
    __syncthreads();
#endif
  }
};

}  // namespace sluice::impl::cuda::subspace
