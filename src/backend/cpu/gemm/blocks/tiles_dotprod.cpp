// Tiles of blocks (gemm/blocks/tiles.h) on Arm's dot products of 8-bit integers (FEAT_DotProd), for
// CPUs without matrix products of them. Built with +dotprod and called only where the kernel
// reports the feature, so this file shares no inline function with the rest.
//
// One instruction multiplies four k of four rows of weights with those of one row of activations.
// To 32 k a tile has 64 of them and 24 operations on floats.

#include <utility>

#include "backend/cpu/gemm/blocks/kernel.h"
#include "backend/cpu/gemm/blocks/layout.h"
#include "backend/cpu/gemm/blocks/tiles.h"

#if defined(__aarch64__) && defined(__linux__) && defined(__ARM_FEATURE_DOTPROD)

#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

namespace sluice::impl::cpu::gemm {
namespace {

#include "backend/cpu/gemm/blocks/group-inl.h"
#include "backend/cpu/gemm/blocks/ops_arm-inl.h"

constexpr int64_t kTogether = 4;
constexpr bool kPairs = false;
constexpr int kQuads = kGroupRows / 4;  // of rows of weights

using TileInts = int32x4_t[kTileX][kQuads];
using TileFloats = float32x4_t[kTileX][kQuads];

alignas(16) constexpr int32_t kFirstSums[4] = {kFirstSum, kFirstSum, kFirstSum, kFirstSum};

// A load: a copy of a register takes a vector pipe.
[[gnu::always_inline]] inline int32x4_t first_sum() {
  int32x4_t sum;
  asm volatile("ldr %q0, %1" : "=w"(sum) : "m"(kFirstSums));
  return sum;
}
[[gnu::always_inline]] inline float32x4_t to_float(int32x4_t sum) {
  return vsubq_f32(vreinterpretq_f32_s32(sum), vdupq_n_f32(kFirstFloat));
}

// A vector of activations holds two rows: k 0-3 and 4-7 of the one, then of the other.
template <int kRow, int kHalf>
[[gnu::always_inline]] inline int32x4_t dot(int32x4_t sum, int8x16_t weights,
                                            const int8x16_t* rows) {
  return vdotq_laneq_s32(sum, weights, rows[kRow / 2], kRow % 2 * 2 + kHalf);
}
template <int kHalf>
[[gnu::always_inline]] inline void add_dots(TileInts& sums, int quad, int8x16_t weights,
                                            const int8x16_t* rows) {
  sums[0][quad] = dot<0, kHalf>(sums[0][quad], weights, rows);
  sums[1][quad] = dot<1, kHalf>(sums[1][quad], weights, rows);
  sums[2][quad] = dot<2, kHalf>(sums[2][quad], weights, rows);
  sums[3][quad] = dot<3, kHalf>(sums[3][quad], weights, rows);
}

// Eight k of all rows. Each sum waits for seven others: with four in between a tile is slower.
[[gnu::always_inline]] inline void add_chunk(TileInts& sums, const int8_t* w, const int8_t* x) {
  const int8x16_t rows[] = {vld1q_s8(x), vld1q_s8(x + 16)};
  for (int q = 0; q < kQuads; ++q) add_dots<0>(sums, q, vld1q_s8(w + 16 * q), rows);
  w += kTogether * kGroupRows;
  for (int q = 0; q < kQuads; ++q) add_dots<1>(sums, q, vld1q_s8(w + 16 * q), rows);
}

// Numbers of rows of activations come as a a b b.
[[gnu::always_inline]] inline void add_scaled(TileFloats& total, const TileInts& sums,
                                              const float* w_scales, const float* x_scales) {
  const float32x4_t first = vld1q_f32(x_scales), second = vld1q_f32(x_scales + 4);
  for (int q = 0; q < kQuads; ++q) {
    const float32x4_t w = vld1q_f32(w_scales + 4 * q);
    const auto add = [&](int row, float32x4_t scale) __attribute__((always_inline)) {
      total[row][q] = vfmaq_f32(total[row][q], to_float(sums[row][q]), scale);
    };
    add(0, vmulq_laneq_f32(w, first, 0));
    add(1, vmulq_laneq_f32(w, first, 2));
    add(2, vmulq_laneq_f32(w, second, 0));
    add(3, vmulq_laneq_f32(w, second, 2));
  }
}

[[gnu::always_inline]] inline void add_minima(TileFloats& total, const float* minima,
                                              const float* x_products) {
  const float32x4_t first = vld1q_f32(x_products), second = vld1q_f32(x_products + 4);
  for (int q = 0; q < kQuads; ++q) {
    const float32x4_t w = vld1q_f32(minima + 4 * q);
    total[0][q] = vfmaq_laneq_f32(total[0][q], w, first, 0);
    total[1][q] = vfmaq_laneq_f32(total[1][q], w, first, 2);
    total[2][q] = vfmaq_laneq_f32(total[2][q], w, second, 0);
    total[3][q] = vfmaq_laneq_f32(total[3][q], w, second, 2);
  }
}

[[gnu::always_inline]] inline void store(const TileFloats& total, const BlockTileArgs& args) {
#pragma GCC unroll 4
  for (int r = 0; r < kTileX; ++r)
#pragma GCC unroll 2
    for (int q = 0; q < kQuads; ++q) {
      float* out = args.out + r * args.out_stride + 4 * q;
      vst1q_f32(out, args.accumulate ? vaddq_f32(vld1q_f32(out), total[r][q]) : total[r][q]);
    }
}

#include "backend/cpu/gemm/blocks/tiles_arm-inl.h"

}  // namespace

const BlockTileKernel* block_tiles_dotprod() {
  static const bool has = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  static const BlockTileKernel kernel = {
      "tiles of 8-bit dot products", kTogether, 1, kPairs, unpack_function, tile_function};
  return has ? &kernel : nullptr;
}

}  // namespace sluice::impl::cpu::gemm

#else

namespace sluice::impl::cpu::gemm {

const BlockTileKernel* block_tiles_dotprod() { return nullptr; }

}  // namespace sluice::impl::cpu::gemm

#endif
