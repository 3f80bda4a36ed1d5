// Register tiles on Arm's BF16 matrix instructions (FEAT_BF16), and its conversion: bf16 products
// summed in f32, two rows by two columns by four k in one instruction. Built with +bf16 and called
// only where the kernel reports the feature, so this file shares no inline function with the rest.

#include "backend/cpu/gemm/gemm.h"
#include "backend/cpu/primitives/narrow.h"

#if defined(__aarch64__) && defined(__linux__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

namespace sluice::impl::cpu::gemm {
namespace {

constexpr int kRowPairs = 4;
constexpr int kColumnPairs = 6;

// Rows i and i + 1, four k each. The last pair of an odd tile repeats its row.
template <int kTileRows>
inline bfloat16x8_t load_a(const bfloat16_t* a, int64_t stride, int pair) {
  const bfloat16_t* first = a + 2 * pair * stride;
  const bfloat16_t* second = 2 * pair + 1 < kTileRows ? first + stride : first;
  return vcombine_bf16(vld1_bf16(first), vld1_bf16(second));
}

inline void put(float* c, float32x4_t value, bool accumulate) {
  vst1q_f32(c, accumulate ? vaddq_f32(vld1q_f32(c), value) : value);
}

template <int kTileRows>
void tile(const TileArgs& args) {
  constexpr int kPairs = (kTileRows + 1) / 2;
  const auto* a = static_cast<const bfloat16_t*>(args.a);
  const auto* b = static_cast<const bfloat16_t*>(args.b);
  float32x4_t sum[kPairs][kColumnPairs];
  for (auto& row : sum)
    for (auto& block : row) block = vdupq_n_f32(0);
  for (int64_t k = 0; k < args.k; k += 4) {
    bfloat16x8_t rows[kPairs];
    for (int i = 0; i < kPairs; ++i) rows[i] = load_a<kTileRows>(a + k, args.a_stride, i);
    for (int j = 0; j < kColumnPairs; ++j, b += 8) {
      const bfloat16x8_t columns = vld1q_bf16(b);
      for (int i = 0; i < kPairs; ++i) sum[i][j] = vbfmmlaq_f32(sum[i][j], rows[i], columns);
    }
  }
  // A block holds (row 0: columns 0, 1; row 1: columns 0, 1): two blocks make four columns.
  for (int i = 0; i < kPairs; ++i)
    for (int j = 0; j < kColumnPairs; j += 2) {
      float* c = args.c + 2 * i * args.c_stride + 2 * j;
      const auto left = vreinterpretq_f64_f32(sum[i][j]);
      const auto right = vreinterpretq_f64_f32(sum[i][j + 1]);
      put(c, vreinterpretq_f32_f64(vtrn1q_f64(left, right)), args.accumulate);
      if (2 * i + 1 < kTileRows)
        put(c + args.c_stride, vreinterpretq_f32_f64(vtrn2q_f64(left, right)), args.accumulate);
    }
}

// One row and several panels: dot products of two columns at once, memory-bound.
template <int kPanels>
void row(const RowArgs& args) {
  const auto* a = static_cast<const bfloat16_t*>(args.a);
  const auto* b = static_cast<const bfloat16_t*>(args.b);
  float32x4_t sum[kPanels][kColumnPairs];
  for (auto& panel : sum)
    for (auto& block : panel) block = vdupq_n_f32(0);
  for (int64_t k = 0; k < args.k; k += 4, b += 8 * kColumnPairs) {
    const bfloat16x4_t four = vld1_bf16(a + k);
    const bfloat16x8_t both = vcombine_bf16(four, four);
    for (int p = 0; p < kPanels; ++p)
      for (int j = 0; j < kColumnPairs; ++j)
        sum[p][j] = vbfdotq_f32(sum[p][j], both, vld1q_bf16(b + p * args.panel_stride + 8 * j));
  }
  for (int p = 0; p < kPanels; ++p)
    for (int j = 0; j < kColumnPairs; j += 2)
      vst1q_f32(args.c + p * args.c_stride + 2 * j, vpaddq_f32(sum[p][j], sum[p][j + 1]));
}

void narrow_natively(const float* from, int64_t n, BFloat16* to) {
  auto* out = reinterpret_cast<bfloat16_t*>(to);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    vst1q_bf16(out + i, vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(vld1q_f32(from + i)),
                                            vld1q_f32(from + i + 4)));
  for (; i < n; ++i) out[i] = vcvth_bf16_f32(from[i]);
}

bool has_bf16() {
  static const bool has = (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
  return has;
}

}  // namespace

const Kernel* kernel_bfmmla() {
  static void (*const functions[])(const TileArgs&) = {tile<1>, tile<2>, tile<3>, tile<4>,
                                                       tile<5>, tile<6>, tile<7>, tile<8>};
  static void (*const rows[])(const RowArgs&) = {row<1>, row<2>, row<3>, row<4>};
  static const Kernel kernel = {.name = "bf16 matrix instructions",
                                .mr = 2 * kRowPairs,
                                .nr = 2 * kColumnPairs,
                                .kq = 4,
                                .a_dtype = DType::kBF16,
                                .b_dtype = DType::kBF16,
                                .tiles = functions,
                                .rows = rows,
                                .k_step = 4};
  return has_bf16() ? &kernel : nullptr;
}

}  // namespace sluice::impl::cpu::gemm

namespace sluice::impl::cpu::primitives {

NarrowFunction narrow_bfcvt() { return gemm::has_bf16() ? gemm::narrow_natively : nullptr; }

}  // namespace sluice::impl::cpu::primitives

#else

namespace sluice::impl::cpu::gemm {

const Kernel* kernel_bfmmla() { return nullptr; }

}  // namespace sluice::impl::cpu::gemm

namespace sluice::impl::cpu::primitives {

NarrowFunction narrow_bfcvt() { return nullptr; }

}  // namespace sluice::impl::cpu::primitives

#endif
