// NativeGroup on Arm's BF16 instructions (FEAT_BF16). Built with +bf16 and called only where the
// kernel reports the feature, so this file shares no inline function with the rest.

#include "backend/cpu/primitives/group_rows.h"

#if defined(__aarch64__) && defined(__linux__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

namespace sluice::impl::cpu::primitives {
namespace {

using Group = GroupRows<BFloat16>;
constexpr int64_t kRows = NativeGroup::kRows, kDim = NativeGroup::kDim;
constexpr int kMostPairs = 4, kMostQueries = 4;  // at once: their sums stay in registers

inline const bfloat16_t* native(const BFloat16* p) {
  return reinterpret_cast<const bfloat16_t*>(p);
}

// Rows [first, first + kRows). Where the pass ends within them, the last row is repeated.
struct EightRows {
  const bfloat16_t* base;
  int64_t d, last;
  template <bool kWhole>
  const bfloat16_t* at(int64_t i) const {
    return base + (kWhole || i < last ? i : last) * d;
  }
};
inline EightRows rows_from(const Group& group, int64_t first) {
  return {native(group.rows) + first * group.d, group.d, group.n - 1 - first};
}

inline bfloat16x8_t low_halves(bfloat16x8_t a, bfloat16x8_t b) {
  return vreinterpretq_bf16_u64(vzip1q_u64(vreinterpretq_u64_bf16(a), vreinterpretq_u64_bf16(b)));
}
inline bfloat16x8_t high_halves(bfloat16x8_t a, bfloat16x8_t b) {
  return vreinterpretq_bf16_u64(vzip2q_u64(vreinterpretq_u64_bf16(a), vreinterpretq_u64_bf16(b)));
}
inline float32x4_t first_rows(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}
inline float32x4_t second_rows(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}

// A pair of queries, four k of each in one vector: two vectors to eight k, (d / 8, pairs, 2, 8).
// An odd last query has zeros next to it.
void pack(const BFloat16* from, int64_t n_queries, int64_t d, BFloat16* to) {
  const int64_t n_pairs = (n_queries + 1) / 2;
  for (int64_t first = 0; first < n_pairs; first += kMostPairs) {
    const int64_t n = n_pairs - first < kMostPairs ? n_pairs - first : kMostPairs;
    for (int64_t k = 0; k < d; k += 8)
      for (int64_t p = 0; p < n; ++p)
        for (int64_t half = 0; half < 2; ++half)
          for (int64_t i = 0; i < 2; ++i) {
            const int64_t query = 2 * (first + p) + i;
            for (int64_t e = 0; e < 4; ++e)
              *to++ = query < n_queries ? from[query * d + k + 4 * half + e] : BFloat16{};
          }
  }
}

template <int kPairs, bool kWhole>
inline void dot_rows(const Group& group, const bfloat16_t* q, int64_t first, int64_t j) {
  const EightRows rows = rows_from(group, j);
  float32x4_t sums[kPairs][4];
  for (auto& pair : sums)
    for (auto& block : pair) block = vdupq_n_f32(0);
  for (int64_t k = 0; k < group.d; k += 8, q += 16 * kPairs) {
    bfloat16x8_t low[4], high[4];
    for (int i = 0; i < 4; ++i) {
      const bfloat16x8_t a = vld1q_bf16(rows.at<kWhole>(2 * i) + k);
      const bfloat16x8_t b = vld1q_bf16(rows.at<kWhole>(2 * i + 1) + k);
      low[i] = low_halves(a, b);
      high[i] = high_halves(a, b);
    }
    for (int p = 0; p < kPairs; ++p) {
      const bfloat16x8_t q_low = vld1q_bf16(q + 16 * p), q_high = vld1q_bf16(q + 16 * p + 8);
      for (int i = 0; i < 4; ++i) sums[p][i] = vbfmmlaq_f32(sums[p][i], q_low, low[i]);
      for (int i = 0; i < 4; ++i) sums[p][i] = vbfmmlaq_f32(sums[p][i], q_high, high[i]);
    }
  }
  // A block holds (query 0: rows 0, 1; query 1: rows 0, 1).
  for (int p = 0; p < kPairs; ++p) {
    float* to = group.scores + (first + 2 * p) * group.score_stride + j;
    vst1q_f32(to, first_rows(sums[p][0], sums[p][1]));
    vst1q_f32(to + 4, first_rows(sums[p][2], sums[p][3]));
    if (first + 2 * p + 1 == group.n_queries) continue;
    to += group.score_stride;
    vst1q_f32(to, second_rows(sums[p][0], sums[p][1]));
    vst1q_f32(to + 4, second_rows(sums[p][2], sums[p][3]));
  }
}

template <int kPairs>
void dot_pairs(const Group& group, const bfloat16_t* queries, int64_t first) {
  int64_t j = 0;
  for (; j + kRows <= group.n; j += kRows) dot_rows<kPairs, true>(group, queries, first, j);
  if (j < group.n) dot_rows<kPairs, false>(group, queries, first, j);
}

void dot(const Group& group, const BFloat16* queries) {
  for (int64_t first = 0; first < group.n_queries; first += 2 * kMostPairs) {
    const bfloat16_t* q = native(queries) + first * group.d;
    switch ((group.n_queries - first + 1) / 2) {
      case 1:
        dot_pairs<1>(group, q, first);
        break;
      case 2:
        dot_pairs<2>(group, q, first);
        break;
      case 3:
        dot_pairs<3>(group, q, first);
        break;
      default:
        dot_pairs<4>(group, q, first);
    }
  }
}

// Rows 2 kPair and 2 kPair + 1 of eight, kDim numbers of each, with their two weights.
template <int kPair, bool kWhole, int kQueries>
inline void add_pair(const EightRows& rows, int64_t k, const bfloat16x8_t (&weights)[kQueries],
                     float32x4_t (&sums)[kQueries][4]) {
  uint16x8_t pairs[4];
  for (int i = 0; i < 2; ++i) {
    const auto a = vreinterpretq_u16_bf16(vld1q_bf16(rows.at<kWhole>(2 * kPair) + k + 8 * i));
    const auto b = vreinterpretq_u16_bf16(vld1q_bf16(rows.at<kWhole>(2 * kPair + 1) + k + 8 * i));
    pairs[2 * i] = vzip1q_u16(a, b);
    pairs[2 * i + 1] = vzip2q_u16(a, b);
  }
  for (int q = 0; q < kQueries; ++q)
    for (int i = 0; i < 4; ++i)
      sums[q][i] =
          vbfdotq_laneq_f32(sums[q][i], vreinterpretq_bf16_u16(pairs[i]), weights[q], kPair);
}

template <bool kWhole, int kQueries>
inline void add_rows(const Group& group, const bfloat16_t* weights, int64_t k, int64_t j,
                     float32x4_t (&sums)[kQueries][4]) {
  const EightRows rows = rows_from(group, j);
  bfloat16x8_t w[kQueries];
  for (int q = 0; q < kQueries; ++q) w[q] = vld1q_bf16(weights + q * group.score_stride + j);
  add_pair<0, kWhole>(rows, k, w, sums);
  add_pair<1, kWhole>(rows, k, w, sums);
  add_pair<2, kWhole>(rows, k, w, sums);
  add_pair<3, kWhole>(rows, k, w, sums);
}

template <int kQueries>
void mix_queries(const Group& group, const bfloat16_t* weights, float* sums) {
  for (int64_t k = 0; k < group.d; k += kDim) {
    float32x4_t sum[kQueries][4];
    for (int q = 0; q < kQueries; ++q)
      for (int i = 0; i < 4; ++i) sum[q][i] = vld1q_f32(sums + q * group.d + k + 4 * i);
    int64_t j = 0;
    for (; j + kRows <= group.n; j += kRows) add_rows<true>(group, weights, k, j, sum);
    if (j < group.n) add_rows<false>(group, weights, k, j, sum);
    for (int q = 0; q < kQueries; ++q)
      for (int i = 0; i < 4; ++i) vst1q_f32(sums + q * group.d + k + 4 * i, sum[q][i]);
  }
}

void mix(const Group& group, const BFloat16* weights, float* sums) {
  for (int64_t first = 0; first < group.n_queries; first += kMostQueries) {
    const bfloat16_t* w = native(weights) + first * group.score_stride;
    float* to = sums + first * group.d;
    switch (group.n_queries - first) {
      case 1:
        mix_queries<1>(group, w, to);
        break;
      case 2:
        mix_queries<2>(group, w, to);
        break;
      case 3:
        mix_queries<3>(group, w, to);
        break;
      default:
        mix_queries<4>(group, w, to);
    }
  }
}

}  // namespace

const NativeGroup* native_group_arm() {
  static constexpr NativeGroup kernels = {.dot = dot, .mix = mix, .pack = pack};
  static const bool has = (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
  return has ? &kernels : nullptr;
}

}  // namespace sluice::impl::cpu::primitives

#else

namespace sluice::impl::cpu::primitives {

const NativeGroup* native_group_arm() { return nullptr; }

}  // namespace sluice::impl::cpu::primitives

#endif
