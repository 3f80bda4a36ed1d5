// Tiles of blocks (gemm/blocks/tiles.h) on Arm's matrix products of 8-bit integers (FEAT_I8MM).
// Built with +i8mm+dotprod and called only where the kernel reports the feature, so this file
// shares no inline function with the rest.
//
// To 32 k a tile has 32 matrix instructions and 24 operations on floats: conversion, product of
// scales, sum. A core of Neoverse-V1 at 2.6 GHz keeps up two matrix instructions a cycle in a loop
// of nothing else, 64 products; this tile reaches 48, with minima 41, with a scale to 16
// weights 34. One scale to a row of activations would save the product of scales and reach 54, but
// err by more.

#include <utility>

#include "backend/cpu/gemm/blocks/kernel.h"
#include "backend/cpu/gemm/blocks/layout.h"
#include "backend/cpu/gemm/blocks/tiles.h"

#if defined(__aarch64__) && defined(__linux__) && defined(__ARM_FEATURE_MATMUL_INT8)

#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

namespace sluice::impl::cpu::gemm {
namespace {

#include "backend/cpu/gemm/blocks/group-inl.h"
#include "backend/cpu/gemm/blocks/ops_arm-inl.h"

constexpr int64_t kTogether = 8;
constexpr bool kPairs = true;
constexpr int kPairsOfX = kTileX / 2;  // of rows of activations
constexpr int kVectors = 4;            // pairs of rows of weights

// A vector holds (x 0: weights 0, 1; x 1: weights 0, 1).
using TileInts = int32x4_t[kPairsOfX][kVectors];
using TileFloats = float32x4_t[kPairsOfX][kVectors];

[[gnu::always_inline]] inline int32x4_t first_sum() { return ArmVectors::no_ints(); }

[[gnu::always_inline]] inline void add_chunk(TileInts& sums, const int8_t* w, const int8_t* x) {
  int8x16_t rows[kPairsOfX];
  for (int i = 0; i < kPairsOfX; ++i) rows[i] = vld1q_s8(x + i * 16);
  for (int v = 0; v < kVectors; ++v) {
    const int8x16_t weights = vld1q_s8(w + v * 16);
    for (int i = 0; i < kPairsOfX; ++i) sums[i][v] = vmmlaq_s32(sums[i][v], rows[i], weights);
  }
}

[[gnu::always_inline]] inline void add_scaled(TileFloats& total, const TileInts& sums,
                                              const float* w_scales, const float* x_scales) {
  for (int v = 0; v < kVectors; ++v) {
    const float32x4_t d = vld1q_f32(w_scales + 4 * v);
    for (int i = 0; i < kPairsOfX; ++i) {
      const float32x4_t scale = vmulq_f32(d, vld1q_f32(x_scales + 4 * i));
      total[i][v] = vfmaq_f32(total[i][v], vcvtq_f32_s32(sums[i][v]), scale);
    }
  }
}

[[gnu::always_inline]] inline void add_minima(TileFloats& total, const float* minima,
                                              const float* x_products) {
  for (int v = 0; v < kVectors; ++v)
    for (int i = 0; i < kPairsOfX; ++i)
      total[i][v] =
          vfmaq_f32(total[i][v], vld1q_f32(minima + 4 * v), vld1q_f32(x_products + 4 * i));
}

// Unless these loops are unrolled early and have no branch, GCC 12 stores the sums to the stack in
// every iteration of the tile.
[[gnu::always_inline]] inline void store(const TileFloats& total, const BlockTileArgs& args) {
  float scratch[kTileX * kGroupRows];
  float* out = args.accumulate ? scratch : args.out;
  const int64_t stride = args.accumulate ? kGroupRows : args.out_stride;
#pragma GCC unroll 2
  for (int i = 0; i < kPairsOfX; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      vst1_f32(out + 2 * i * stride + 2 * v, vget_low_f32(total[i][v]));
      vst1_f32(out + (2 * i + 1) * stride + 2 * v, vget_high_f32(total[i][v]));
    }
  if (args.accumulate)
    for (int64_t r = 0; r < kTileX; ++r)
      for (int64_t n = 0; n < kGroupRows; ++n)
        args.out[r * args.out_stride + n] += scratch[r * kGroupRows + n];
}

#include "backend/cpu/gemm/blocks/tiles_arm-inl.h"

}  // namespace

const BlockTileKernel* block_tiles_i8mm() {
  static const bool has = (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
  static const BlockTileKernel kernel = {
      "tiles of 8-bit matrix instructions", kTogether, 1, kPairs, unpack_function, tile_function};
  return has ? &kernel : nullptr;
}

}  // namespace sluice::impl::cpu::gemm

#else

namespace sluice::impl::cpu::gemm {

const BlockTileKernel* block_tiles_i8mm() { return nullptr; }

}  // namespace sluice::impl::cpu::gemm

#endif
