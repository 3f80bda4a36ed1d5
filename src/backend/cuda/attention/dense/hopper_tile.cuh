// Attention on Hopper's tensor cores, dense or of modes `keys` and `copy`: the layout of
// shared memory, with a tile of queries and stages for tiles of keys and of values, and the
// products of tiles.

#pragma once

#include "backend/cuda/attention/dense/tile.cuh"
#include "backend/cuda/primitives/wgmma.cuh"

namespace sluice::impl::cuda::dense::hopper {

constexpr int kRows = 128;  // queries of a tile
constexpr int kThreads = 3 * 128;
constexpr int kWarps = 8;  // that multiply
constexpr int kLanes = 32 * kWarps;
constexpr int kRowBytes = 128;  // of a panel: 64 numbers
constexpr int kEightRows = 8 * kRowBytes;

template <int kD>
struct Sizes {
  static constexpr int kPanels = kD / 64;
  static constexpr int kKeys = kD <= 128 ? 128 : 64;
  static constexpr int kQueryPanel = kRows * kRowBytes, kKeyPanel = kKeys * kRowBytes;  // bytes
  static constexpr int kQueryBytes = kPanels * kQueryPanel, kTileBytes = kPanels * kKeyPanel;
  // Sums are kept in parts as wide as one instruction.
  static constexpr int kParts = kD <= 128 ? 1 : 2;
  static constexpr int kPartPanels = kPanels / kParts;

  // Of shared memory, for so many tiles of keys and of values; it begins at a multiple of 1024.
  static constexpr int bytes(int n_tiles) { return kQueryBytes + n_tiles * kTileBytes + 1024; }
};

// The number of a thread's warp, told so that the compiler knows that all lanes agree on it.
__device__ inline int uniform_warp() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
}

// Says that this warp is done with a tile that tensor cores alone have read. Of what lanes have
// read themselves each of them says so.
__device__ inline void release(uint64_t* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(barrier);
}

// An operand whose neighbours are found by adding to it. What is added is not to be kept: registers
// are few.
__device__ inline uint64_t movable_operand_at(uint32_t address, uint32_t leading) {
  uint64_t operand = operand_at(address, leading, kEightRows);
  asm volatile("" : "+l"(operand));
  return operand;
}

// Starts scores = queries times a tile of keys.
template <int kD>
__device__ void start_scores(float (&scores)[Sizes<kD>::kKeys / 8][4], uint32_t queries,
                             uint32_t keys) {
  using S = Sizes<kD>;
  const uint64_t a = movable_operand_at(queries, 16), b = movable_operand_at(keys, 16);
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) {
    const uint32_t panel = k / 4, column = k % 4 * 32;  // bytes
    multiply_shared(scores, a + (panel * S::kQueryPanel + column) / 16,
                    b + (panel * S::kKeyPanel + column) / 16, k > 0);
  }
  wgmma_commit();
}

// Starts sums += weights times a tile of values.
template <int kD>
__device__ void start_sums(float (&sums)[Sizes<kD>::kParts][8 * Sizes<kD>::kPartPanels][4],
                           const uint32_t (&weights)[Sizes<kD>::kKeys / 16][4], uint32_t values) {
  using S = Sizes<kD>;
  const uint64_t b = movable_operand_at(values, S::kKeyPanel);
#pragma unroll
  for (int part = 0; part < S::kParts; ++part)
#pragma unroll
    for (int k = 0; k < S::kKeys / 16; ++k)
      multiply_registers(sums[part], weights[k],
                         b + (part * S::kPartPanels * S::kKeyPanel + k * 2 * kEightRows) / 16);
  wgmma_commit();
}

// Makes the compiler find weights before what follows, a wait for products: it would wait first and
// leave the tensor cores idle meanwhile. No total is negative, but it does not know.
__device__ inline void finish_weights(const Softmax& softmax) {
  asm volatile(
      "{.reg .pred never; setp.lt.f32 never, %0, 0f00000000; @never nanosleep.u32 1;}\n" ::"f"(
          softmax.total[0] + softmax.total[1])
      : "memory");
}

// Position in a ring of stages: the stage, and the parity of its barriers.
template <int kStages>
struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;

  __device__ PipelineState take() {
    const PipelineState now = *this;
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
    return now;
  }
};

}  // namespace sluice::impl::cuda::dense::hopper
