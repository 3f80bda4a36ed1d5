// NativeInt8Group on Arm's matrix products of 8-bit integers (FEAT_I8MM): two rows by two by eight
// k in one instruction, the two terms of a query or of its weights being one of the two. Built with
// +i8mm and called only where the kernel reports the feature, so this file shares no inline
// function with the rest.

#include "backend/cpu/primitives/group_rows.h"

#if defined(__aarch64__) && defined(__linux__) && defined(__ARM_FEATURE_MATMUL_INT8)

#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "backend/cpu/primitives/int8_terms-inl.h"

namespace sluice::impl::cpu::primitives {
namespace {

constexpr int64_t kRows = Native::kRows;
constexpr int kMostQueries = 4;  // at once: their sums stay in registers

inline int8x16_t low_halves(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
inline int8x16_t high_halves(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}

// Of four rows: two blocks of (row 0: high, low; row 1: high, low).
inline float32x4_t joined(int32x4_t a, int32x4_t b) {
  return vcvtq_f32_s32(vmlaq_n_s32(vuzp2q_s32(a, b), vuzp1q_s32(a, b), 128));
}

template <int kQueries, bool kWhole>
inline void dot_rows(const Group& group, const int8_t* terms, const float* scales, float* scores,
                     const float* row_scales, int64_t j) {
  const TileRows rows = rows_from(group, j);
  int32x4_t sums[kQueries][4];
  for (auto& query : sums)
    for (auto& block : query) block = vdupq_n_s32(0);
  for (int64_t k = 0; k < group.d; k += 16, terms += 32 * kQueries) {
    int8x16_t low[4], high[4];
    for (int i = 0; i < 4; ++i) {
      const int8x16_t a = vld1q_s8(rows.at<kWhole>(2 * i) + k);
      const int8x16_t b = vld1q_s8(rows.at<kWhole>(2 * i + 1) + k);
      low[i] = low_halves(a, b);
      high[i] = high_halves(a, b);
    }
    for (int q = 0; q < kQueries; ++q) {
      const int8x16_t first = vld1q_s8(terms + 16 * q);
      const int8x16_t second = vld1q_s8(terms + 16 * (kQueries + q));
      for (int i = 0; i < 4; ++i) sums[q][i] = vmmlaq_s32(sums[q][i], low[i], first);
      for (int i = 0; i < 4; ++i) sums[q][i] = vmmlaq_s32(sums[q][i], high[i], second);
    }
  }
  float32x4_t first, second;
  if (kWhole) {
    first = vld1q_f32(row_scales + j);
    second = vld1q_f32(row_scales + j + 4);
  } else {
    float tail[kRows] = {};
    for (int64_t i = 0; i <= rows.last; ++i) tail[i] = row_scales[j + i];
    first = vld1q_f32(tail);
    second = vld1q_f32(tail + 4);
  }
  for (int q = 0; q < kQueries; ++q) {
    float* to = scores + q * group.score_stride + j;
    vst1q_f32(to, vmulq_f32(joined(sums[q][0], sums[q][1]), vmulq_n_f32(first, scales[q])));
    vst1q_f32(to + 4, vmulq_f32(joined(sums[q][2], sums[q][3]), vmulq_n_f32(second, scales[q])));
  }
}

template <int kQueries>
void dot_queries(const Group& group, const int8_t* terms, const float* scales, float* scores,
                 const float* row_scales) {
  int64_t j = 0;
  for (; j + kRows <= group.n; j += kRows)
    dot_rows<kQueries, true>(group, terms, scales, scores, row_scales, j);
  if (j < group.n) dot_rows<kQueries, false>(group, terms, scales, scores, row_scales, j);
}

void dot(const Group& group, const Native::Queries& queries, const float* row_scales) {
  for (int64_t first = 0; first < group.n_queries; first += kMostQueries) {
    const int8_t* terms = queries.terms + 2 * first * group.d;
    const float* scales = queries.scales + first;
    float* scores = group.scores + first * group.score_stride;
    switch (group.n_queries - first) {
      case 1:
        dot_queries<1>(group, terms, scales, scores, row_scales);
        break;
      case 2:
        dot_queries<2>(group, terms, scales, scores, row_scales);
        break;
      case 3:
        dot_queries<3>(group, terms, scales, scores, row_scales);
        break;
      default:
        dot_queries<4>(group, terms, scales, scores, row_scales);
    }
  }
}

// Eight numbers k … of eight rows, as (8 numbers, 8 rows).
template <bool kWhole>
inline void transposed(const TileRows& rows, int64_t k, int8x16_t (&to)[4]) {
  int8x16_t pairs[4];  // rows i and i + 4
  for (int i = 0; i < 4; ++i) {
    const int8x8_t a = vld1_s8(rows.at<kWhole>(i) + k), b = vld1_s8(rows.at<kWhole>(i + 4) + k);
    pairs[i] = vzip1q_s8(vcombine_s8(a, a), vcombine_s8(b, b));
  }
  const int8x16_t even_low = vzip1q_s8(pairs[0], pairs[2]);
  const int8x16_t even_high = vzip2q_s8(pairs[0], pairs[2]);
  const int8x16_t odd_low = vzip1q_s8(pairs[1], pairs[3]);
  const int8x16_t odd_high = vzip2q_s8(pairs[1], pairs[3]);
  to[0] = vzip1q_s8(even_low, odd_low);
  to[1] = vzip2q_s8(even_low, odd_low);
  to[2] = vzip1q_s8(even_high, odd_high);
  to[3] = vzip2q_s8(even_high, odd_high);
}

template <int kQueries>
void mix_queries(const Group& group, const float* scores, const float* row_scales, float* sums) {
  uint8_t terms[kQueries][2 * Native::kMostRows];
  float units[kQueries];
  for (int q = 0; q < kQueries; ++q)
    units[q] = split_weights(scores + q * group.score_stride, row_scales, group.n, terms[q]);
  for (int64_t k = 0; k < group.d; k += 8) {
    int32x4_t sum[kQueries][4];  // (high: number 0, 1; low: number 0, 1)
    for (auto& query : sum)
      for (auto& block : query) block = vdupq_n_s32(0);
    const auto add = [&](int64_t j, const int8x16_t(&rows)[4]) {
      for (int q = 0; q < kQueries; ++q) {
        const uint8x16_t weights = vld1q_u8(terms[q] + 2 * j);
        for (int i = 0; i < 4; ++i) sum[q][i] = vusmmlaq_s32(sum[q][i], weights, rows[i]);
      }
    };
    int8x16_t rows[4];
    int64_t j = 0;
    for (; j + kRows <= group.n; j += kRows) {
      transposed<true>(rows_from(group, j), k, rows);
      add(j, rows);
    }
    if (j < group.n) {
      transposed<false>(rows_from(group, j), k, rows);
      add(j, rows);
    }
    for (int q = 0; q < kQueries; ++q)
      for (int i = 0; i < 4; i += 2) {
        const int32x4_t a = sum[q][i], b = sum[q][i + 1];
        const int32x4_t high = vcombine_s32(vget_low_s32(a), vget_low_s32(b));
        const int32x4_t low = vcombine_s32(vget_high_s32(a), vget_high_s32(b));
        float* to = sums + q * group.d + k + 2 * i;
        vst1q_f32(to,
                  vfmaq_n_f32(vld1q_f32(to), vcvtq_f32_s32(vmlaq_n_s32(low, high, 256)), units[q]));
      }
  }
}

void mix(const Group& group, const float* row_scales, float* sums) {
  for (int64_t first = 0; first < group.n_queries; first += kMostQueries) {
    const float* scores = group.scores + first * group.score_stride;
    float* to = sums + first * group.d;
    switch (group.n_queries - first) {
      case 1:
        mix_queries<1>(group, scores, row_scales, to);
        break;
      case 2:
        mix_queries<2>(group, scores, row_scales, to);
        break;
      case 3:
        mix_queries<3>(group, scores, row_scales, to);
        break;
      default:
        mix_queries<4>(group, scores, row_scales, to);
    }
  }
}

}  // namespace

const NativeInt8Group* int8_group_i8mm() {
  static constexpr NativeInt8Group kernels = {
      .pack = pack<kMostQueries, 8>, .dot = dot, .mix = mix};
  static const bool has = (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
  return has ? &kernels : nullptr;
}

}  // namespace sluice::impl::cpu::primitives

#else

namespace sluice::impl::cpu::primitives {

const NativeInt8Group* int8_group_i8mm() { return nullptr; }

}  // namespace sluice::impl::cpu::primitives

#endif
