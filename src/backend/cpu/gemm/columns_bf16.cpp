// The bf16 kernels of gemm/columns_simd.h on Arm's BF16 instructions (FEAT_BF16), which multiply
// without widening first: half the instructions. Built with +bf16 and called only where the kernel
// reports the feature, so this file shares no inline function with the rest.

#include "backend/cpu/gemm/columns_simd.h"

#if defined(__aarch64__) && defined(__linux__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

#include <arm_neon.h>

namespace sluice::impl::cpu::gemm {
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
void dot(const VectorsArgs<BFloat16>& args, const BFloat16* x, double* dots) {
  float64x2_t total[kCount];
  const bfloat16_t* vectors[kCount];
  for (int j = 0; j < kCount; ++j) {
    total[j] = vdupq_n_f64(0);
    vectors[j] = elements(args.vectors[j]);
  }
  for (int64_t first = 0; first < args.n; first += kDotLines * kLine) {
    const int64_t end = args.n - first < kDotLines * kLine ? args.n : first + kDotLines * kLine;
    float32x4_t sum[kCount];
    for (int j = 0; j < kCount; ++j) sum[j] = vdupq_n_f32(0);
    for (int64_t i = first; i < end; i += kLine) {
      bfloat16x8_t factor[kParts];
      for (int part = 0; part < kParts; ++part)
        factor[part] = vld1q_bf16(elements(x + i) + 8 * part);
      for (int j = 0; j < kCount; ++j)
        for (int part = 0; part < kParts; ++part)
          sum[j] = vbfdotq_f32(sum[j], vld1q_bf16(vectors[j] + i + 8 * part), factor[part]);
    }
    for (int j = 0; j < kCount; ++j)
      total[j] = vaddq_f64(vaddq_f64(total[j], vcvt_f64_f32(vget_low_f32(sum[j]))),
                           vcvt_high_f64_f32(sum[j]));
  }
  for (int j = 0; j < kCount; ++j) dots[j] = vaddvq_f64(total[j]);
}

void mix_any(const VectorsArgs<BFloat16>& args, const BFloat16* weights, float* sums) {
  static constexpr decltype(&mix<1>) functions[] = {mix<1>, mix<2>, mix<3>, mix<4>,
                                                    mix<5>, mix<6>, mix<7>, mix<8>};
  functions[args.count - 1](args, weights, sums);
}

void dot_any(const VectorsArgs<BFloat16>& args, const BFloat16* x, double* dots) {
  static constexpr decltype(&dot<1>) functions[] = {dot<1>, dot<2>, dot<3>, dot<4>,
                                                    dot<5>, dot<6>, dot<7>, dot<8>};
  functions[args.count - 1](args, x, dots);
}

}  // namespace

MixFunction native_mix() { return mix_any; }
DotFunction native_dot() { return dot_any; }

}  // namespace sluice::impl::cpu::gemm

#else

namespace sluice::impl::cpu::gemm {

MixFunction native_mix() { return nullptr; }
DotFunction native_dot() { return nullptr; }

}  // namespace sluice::impl::cpu::gemm

#endif
