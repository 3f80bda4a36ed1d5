// The bf16 kernels of columns_simd.h on Arm's BF16 instructions (FEAT_BF16), which multiply without
// widening first: half the instructions. Built with +bf16 and called only where the kernel reports
// the feature, so this file shares no inline function with the rest.

#include "backend/cpu/columns_simd.h"

#if defined(__aarch64__) && defined(__linux__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

#include <arm_neon.h>

namespace sluice::cpu {
namespace {

constexpr int kLine = 32;          // elements
constexpr int kParts = kLine / 8;  // vectors of bf16, each two of f32

const bfloat16_t* elements(const BFloat16* p) { return reinterpret_cast<const bfloat16_t*>(p); }

template <int kCount>
void mix(const VectorsArgs<BFloat16>& args, const BFloat16* weights, float* sums) {
  bfloat16x8_t weight[kCount];
  const bfloat16_t* vectors[kCount];
  for (int j = 0; j < kCount; ++j) {
    weight[j] = vdupq_n_bf16(*elements(weights + j));
    vectors[j] = elements(args.vectors[j]);
  }
  for (int64_t i = 0; i < args.n; i += kLine) {
    float32x4_t low[kParts], high[kParts];
    for (int part = 0; part < kParts; ++part) {
      low[part] = vld1q_f32(sums + i + 4 * part);
      high[part] = vld1q_f32(sums + i + kLine / 2 + 4 * part);
    }
    for (int j = 0; j < kCount; ++j)
      for (int part = 0; part < kParts; ++part) {
        const bfloat16x8_t both = vld1q_bf16(vectors[j] + i + 8 * part);
        low[part] = vbfmlalbq_f32(low[part], both, weight[j]);
        high[part] = vbfmlaltq_f32(high[part], both, weight[j]);
      }
    for (int part = 0; part < kParts; ++part) {
      vst1q_f32(sums + i + 4 * part, low[part]);
      vst1q_f32(sums + i + kLine / 2 + 4 * part, high[part]);
    }
  }
}

template <int kCount>
void dot(const VectorsArgs<BFloat16>& args, const BFloat16* x, float* dots) {
  float32x4_t even[kCount], odd[kCount];
  const bfloat16_t* vectors[kCount];
  for (int j = 0; j < kCount; ++j) {
    even[j] = odd[j] = vdupq_n_f32(0);
    vectors[j] = elements(args.vectors[j]);
  }
  for (int64_t i = 0; i < args.n; i += 16) {
    const bfloat16x8_t first = vld1q_bf16(elements(x + i)),
                       second = vld1q_bf16(elements(x + i + 8));
    for (int j = 0; j < kCount; ++j) {
      even[j] = vbfdotq_f32(even[j], vld1q_bf16(vectors[j] + i), first);
      odd[j] = vbfdotq_f32(odd[j], vld1q_bf16(vectors[j] + i + 8), second);
    }
  }
  for (int j = 0; j < kCount; ++j) dots[j] = vaddvq_f32(vaddq_f32(even[j], odd[j]));
}

void mix_any(const VectorsArgs<BFloat16>& args, const BFloat16* weights, float* sums) {
  static constexpr decltype(&mix<1>) functions[] = {mix<1>, mix<2>, mix<3>, mix<4>,
                                                    mix<5>, mix<6>, mix<7>, mix<8>};
  functions[args.count - 1](args, weights, sums);
}

void dot_any(const VectorsArgs<BFloat16>& args, const BFloat16* x, float* dots) {
  static constexpr decltype(&dot<1>) functions[] = {dot<1>, dot<2>, dot<3>, dot<4>,
                                                    dot<5>, dot<6>, dot<7>, dot<8>};
  functions[args.count - 1](args, x, dots);
}

}  // namespace

MixFunction native_mix() { return mix_any; }
DotFunction native_dot() { return dot_any; }

}  // namespace sluice::cpu

#else

namespace sluice::cpu {

MixFunction native_mix() { return nullptr; }
DotFunction native_dot() { return nullptr; }

}  // namespace sluice::cpu

#endif
