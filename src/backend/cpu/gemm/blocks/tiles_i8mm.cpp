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
#include "backend/cpu/gemm/blocks/tiles_arm-inl.h"

constexpr int kPairs = kTileX / 2;  // of rows of activations
constexpr int kVectors = 4;         // pairs of rows of weights

using TileInts = int32x4_t[kPairs][kVectors];
using TileFloats = float32x4_t[kPairs][kVectors];

template <bool kMinima, bool kHalves>
void tile(const BlockTileArgs& args) {
  TileFloats total;
  for (auto& of_x : total)
    for (auto& sum : of_x) sum = vdupq_n_f32(0);
  const int8_t *w = args.w.weights, *x = args.x;
  const float *scales = args.w.scales, *minima = args.w.minima;
  const float *x_scales = args.x_scales, *x_products = args.x_products;
  constexpr int kParts = kHalves ? 2 : 1;  // of 32 k, each with a scale
  for (int64_t b = 0; b < args.n; ++b) {
    for (int part = 0; part < kParts; ++part) {
      TileInts sums;
      for (auto& of_x : sums)
        for (auto& sum : of_x) sum = ArmVectors::no_ints();
      for (int j = 0; j < 4 / kParts; ++j) {
        int8x16_t rows[kPairs];
        for (int i = 0; i < kPairs; ++i) rows[i] = vld1q_s8(x + (j * kPairs + i) * 16);
        for (int v = 0; v < kVectors; ++v) {
          const int8x16_t weights = vld1q_s8(w + (j * kVectors + v) * 16);
          for (int i = 0; i < kPairs; ++i) sums[i][v] = vmmlaq_s32(sums[i][v], rows[i], weights);
        }
      }
      for (int v = 0; v < kVectors; ++v) {
        const float32x4_t d = vld1q_f32(scales + 4 * v);
        for (int i = 0; i < kPairs; ++i) {
          const float32x4_t scale = vmulq_f32(d, vld1q_f32(x_scales + 4 * i));
          total[i][v] = vfmaq_f32(total[i][v], vcvtq_f32_s32(sums[i][v]), scale);
        }
      }
      w += kSubBlock * kGroupRows / kParts;
      x += kSubBlock * kTileX / kParts;
      scales += 4 * kVectors;
    }
    x_scales += 4 * kPairs;
    if constexpr (kMinima) {
      for (int v = 0; v < kVectors; ++v)
        for (int i = 0; i < kPairs; ++i)
          total[i][v] =
              vfmaq_f32(total[i][v], vld1q_f32(minima + 4 * v), vld1q_f32(x_products + 4 * i));
      minima += 4 * kVectors;
      x_products += 4 * kPairs;
    }
  }
  // A vector holds (x 0: weights 0, 1; x 1: weights 0, 1). Unless these loops are unrolled early
  // and have no branch, GCC 12 stores the sums to the stack in every iteration above.
  float scratch[kTileX * kGroupRows];
  float* out = args.accumulate ? scratch : args.out;
  const int64_t stride = args.accumulate ? kGroupRows : args.out_stride;
#pragma GCC unroll 2
  for (int i = 0; i < kPairs; ++i)
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

}  // namespace

const BlockTileKernel* block_tiles_i8mm() {
  static const bool has = (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
  static const BlockTileKernel kernel = {"tiles of 8-bit matrix instructions", kTogether,
                                         unpack_function, tile_function};
  return has ? &kernel : nullptr;
}

}  // namespace sluice::impl::cpu::gemm

#else

namespace sluice::impl::cpu::gemm {

const BlockTileKernel* block_tiles_i8mm() { return nullptr; }

}  // namespace sluice::impl::cpu::gemm

#endif
