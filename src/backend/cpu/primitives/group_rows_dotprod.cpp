// NativeInt8Group on Arm's dot products of 8-bit integers (FEAT_DotProd), for CPUs without
// FEAT_I8MM. Built with +dotprod and called only where the kernel reports the feature, so this file
// shares no inline function with the rest.

#include "backend/cpu/primitives/group_rows.h"

#if defined(__aarch64__) && defined(__linux__) && defined(__ARM_FEATURE_DOTPROD)

#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "backend/cpu/primitives/int8_terms-inl.h"

namespace sluice::impl::cpu::primitives {
namespace {

constexpr int kRows = 4;  // at once
// At once in dot() and in mix(): the sums of both terms stay in registers.
constexpr int kDotQueries = 2, kMixQueries = 3;

// The sum of the lanes of each of four vectors.
inline int32x4_t lane_sums(const int32x4_t (&v)[kRows]) {
  return vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]));
}

template <int kQueries, bool kWhole>
inline void dot_rows(const Group& group, const int8_t* terms, const float* scales, float* scores,
                     const float* row_scales, int64_t j) {
  const TileRows rows = rows_from(group, j);
  int32x4_t high[kQueries][kRows], low[kQueries][kRows];
  for (int q = 0; q < kQueries; ++q)
    for (int r = 0; r < kRows; ++r) high[q][r] = low[q][r] = vdupq_n_s32(0);
  for (int64_t k = 0; k < group.d; k += 16, terms += 32 * kQueries) {
    int8x16_t row[kRows];
    for (int r = 0; r < kRows; ++r) row[r] = vld1q_s8(rows.at<kWhole>(r) + k);
    for (int q = 0; q < kQueries; ++q) {
      const int8x16_t first = vld1q_s8(terms + 32 * q), second = vld1q_s8(terms + 32 * q + 16);
      for (int r = 0; r < kRows; ++r) high[q][r] = vdotq_s32(high[q][r], row[r], first);
      for (int r = 0; r < kRows; ++r) low[q][r] = vdotq_s32(low[q][r], row[r], second);
    }
  }
  float32x4_t scale;
  if (kWhole) {
    scale = vld1q_f32(row_scales + j);
  } else {
    float tail[kRows] = {};
    for (int64_t i = 0; i <= rows.last; ++i) tail[i] = row_scales[j + i];
    scale = vld1q_f32(tail);
  }
  for (int q = 0; q < kQueries; ++q) {
    const int32x4_t sums = vmlaq_n_s32(lane_sums(low[q]), lane_sums(high[q]), 128);
    vst1q_f32(scores + q * group.score_stride + j,
              vmulq_f32(vcvtq_f32_s32(sums), vmulq_n_f32(scale, scales[q])));
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
  for (int64_t first = 0; first < group.n_queries; first += kDotQueries) {
    const int8_t* terms = queries.terms + 2 * first * group.d;
    const float* scales = queries.scales + first;
    float* scores = group.scores + first * group.score_stride;
    if (group.n_queries - first == 1)
      dot_queries<1>(group, terms, scales, scores, row_scales);
    else
      dot_queries<2>(group, terms, scales, scores, row_scales);
  }
}

// Sixteen numbers k … of four rows, as four vectors of (4 numbers, 4 rows). 128 is added to each,
// so that they have no sign, as weights have none.
template <bool kWhole>
inline void transposed(const TileRows& rows, int64_t first, int64_t k, uint8x16_t (&to)[4]) {
  uint8x16_t row[kRows];
  for (int r = 0; r < kRows; ++r)
    row[r] =
        veorq_u8(vreinterpretq_u8_s8(vld1q_s8(rows.at<kWhole>(first + r) + k)), vdupq_n_u8(0x80));
  const uint8x16_t even_low = vzip1q_u8(row[0], row[2]), even_high = vzip2q_u8(row[0], row[2]);
  const uint8x16_t odd_low = vzip1q_u8(row[1], row[3]), odd_high = vzip2q_u8(row[1], row[3]);
  to[0] = vzip1q_u8(even_low, odd_low);
  to[1] = vzip2q_u8(even_low, odd_low);
  to[2] = vzip1q_u8(even_high, odd_high);
  to[3] = vzip2q_u8(even_high, odd_high);
}

// What the 128 of transposed() add to a sum: 128 times the weights.
inline uint32_t added(const uint8_t* terms, int64_t n) {
  uint32x4_t sums = vdupq_n_u32(0);  // (high, high, low, low)
  for (int64_t j = 0; j < n; j += 8)
    sums = vdotq_u32(sums, vld1q_u8(terms + 2 * j), vdupq_n_u8(128));
  return 256 * (vgetq_lane_u32(sums, 0) + vgetq_lane_u32(sums, 1)) + vgetq_lane_u32(sums, 2) +
         vgetq_lane_u32(sums, 3);
}

// Eight rows of sixteen numbers with their weights.
template <int kQueries, bool kWhole>
inline void add_rows(const Group& group, const uint8_t (&terms)[kQueries][2 * Native::kMostRows],
                     int64_t k, int64_t j, uint32x4_t (&high)[kQueries][4],
                     uint32x4_t (&low)[kQueries][4]) {
  const TileRows rows = rows_from(group, j);
  uint8x16_t columns[4];
  transposed<kWhole>(rows, 0, k, columns);
  for (int q = 0; q < kQueries; ++q) {
    const uint8x16_t weights = vld1q_u8(terms[q] + 2 * j);
    for (int i = 0; i < 4; ++i) high[q][i] = vdotq_laneq_u32(high[q][i], columns[i], weights, 0);
    for (int i = 0; i < 4; ++i) low[q][i] = vdotq_laneq_u32(low[q][i], columns[i], weights, 2);
  }
  transposed<kWhole>(rows, 4, k, columns);
  for (int q = 0; q < kQueries; ++q) {
    const uint8x16_t weights = vld1q_u8(terms[q] + 2 * j);
    for (int i = 0; i < 4; ++i) high[q][i] = vdotq_laneq_u32(high[q][i], columns[i], weights, 1);
    for (int i = 0; i < 4; ++i) low[q][i] = vdotq_laneq_u32(low[q][i], columns[i], weights, 3);
  }
}

template <int kQueries>
void mix_queries(const Group& group, const float* scores, const float* row_scales, float* sums) {
  uint8_t terms[kQueries][2 * Native::kMostRows];
  float units[kQueries];
  uint32_t more[kQueries];
  for (int q = 0; q < kQueries; ++q) {
    units[q] = split_weights(scores + q * group.score_stride, row_scales, group.n, terms[q]);
    more[q] = added(terms[q], group.n);
  }
  for (int64_t k = 0; k < group.d; k += 16) {
    uint32x4_t high[kQueries][4], low[kQueries][4];
    for (int q = 0; q < kQueries; ++q)
      for (int i = 0; i < 4; ++i) high[q][i] = low[q][i] = vdupq_n_u32(0);
    int64_t j = 0;
    for (; j + 8 <= group.n; j += 8) add_rows<kQueries, true>(group, terms, k, j, high, low);
    if (j < group.n) add_rows<kQueries, false>(group, terms, k, j, high, low);
    for (int q = 0; q < kQueries; ++q)
      for (int i = 0; i < 4; ++i) {
        // Modulo 2^32: the difference has at most 31 bits.
        const int32x4_t sum = vreinterpretq_s32_u32(
            vsubq_u32(vmlaq_n_u32(low[q][i], high[q][i], 256), vdupq_n_u32(more[q])));
        float* to = sums + q * group.d + k + 4 * i;
        vst1q_f32(to, vfmaq_n_f32(vld1q_f32(to), vcvtq_f32_s32(sum), units[q]));
      }
  }
}

void mix(const Group& group, const float* row_scales, float* sums) {
  for (int64_t first = 0; first < group.n_queries; first += kMixQueries) {
    const float* scores = group.scores + first * group.score_stride;
    float* to = sums + first * group.d;
    switch (group.n_queries - first) {
      case 1:
        mix_queries<1>(group, scores, row_scales, to);
        break;
      case 2:
        mix_queries<2>(group, scores, row_scales, to);
        break;
      default:
        mix_queries<3>(group, scores, row_scales, to);
    }
  }
}

}  // namespace

const NativeInt8Group* int8_group_dotprod() {
  static constexpr NativeInt8Group kernels = {
      .pack = pack<kDotQueries, 16>, .dot = dot, .mix = mix};
  static const bool has = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  return has ? &kernels : nullptr;
}

}  // namespace sluice::impl::cpu::primitives

#else

namespace sluice::impl::cpu::primitives {

const NativeInt8Group* int8_group_dotprod() { return nullptr; }

}  // namespace sluice::impl::cpu::primitives

#endif
