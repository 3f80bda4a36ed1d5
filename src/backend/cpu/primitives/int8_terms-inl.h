// Queries and weights as two terms of 8 bits, and rows of int8 they meet: what kernels of
// NativeInt8Group for several instruction sets share. In an unnamed namespace, since each of them
// is compiled for its own.

#pragma once

#include <arm_neon.h>

#include "backend/cpu/primitives/group_rows.h"

namespace sluice::impl::cpu::primitives {
namespace {

using Group = GroupRows<int8_t>;
using Native = NativeInt8Group;
// Weights of a block below this count as zeros: its inverse would be infinite.
constexpr float kLeast = 0x1p-100f;

// Rows from `first` on. Where the pass ends within a tile, the last row is repeated.
struct TileRows {
  const int8_t* base;
  int64_t d, last;
  template <bool kWhole>
  const int8_t* at(int64_t i) const {
    return base + (kWhole || i < last ? i : last) * d;
  }
};
inline TileRows rows_from(const Group& group, int64_t first) {
  return {group.rows + first * group.d, group.d, group.n - 1 - first};
}

// A number is 128 high + low times the scale. Terms: (d / kWidth, queries, 2, kWidth), kMostQueries
// at a time.
template <int kMostQueries, int kWidth>
void pack(const float* from, int64_t n_queries, int64_t d, int8_t* to, float* scales) {
  for (int64_t first = 0; first < n_queries; first += kMostQueries) {
    const int64_t n = n_queries - first < kMostQueries ? n_queries - first : kMostQueries;
    for (int64_t q = 0; q < n; ++q) {
      const float* query = from + (first + q) * d;
      float32x4_t largest = vdupq_n_f32(0);
      for (int64_t k = 0; k < d; k += 4)
        largest = vmaxq_f32(largest, vabsq_f32(vld1q_f32(query + k)));
      const float scale = vmaxvq_f32(largest) / Native::kMostQuery;
      scales[first + q] = scale;
      // 0, and what is not finite: the scale makes the scores that.
      const float inverse = scale > 0 && scale < 0x1p100f ? 1 / scale : 0.0f;
      for (int64_t k = 0; k < d; ++k) {
        const int32_t number =
            inverse > 0 ? static_cast<int32_t>(__builtin_nearbyintf(query[k] * inverse)) : 0;
        const int32_t bounded = number > Native::kMostQuery    ? Native::kMostQuery
                                : number < -Native::kMostQuery ? -Native::kMostQuery
                                                               : number;
        const int32_t high = (bounded + 64) >> 7;
        int8_t* at = to + first * 2 * d + (k / kWidth * n + q) * 2 * kWidth + k % kWidth;
        at[0] = static_cast<int8_t>(high);
        at[kWidth] = static_cast<int8_t>(bounded - 128 * high);
      }
    }
  }
}

// Weights of one query as 256 high + low: (n / 8, 2, 8), zeros behind the last. Returns their
// unit.
inline float split_weights(const float* weights, const float* row_scales, int64_t n, uint8_t* to) {
  float products[Native::kMostRows];
  float32x4_t largest = vdupq_n_f32(0);
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const float32x4_t product = vmulq_f32(vld1q_f32(weights + i), vld1q_f32(row_scales + i));
    largest = vmaxq_f32(largest, product);
    vst1q_f32(products + i, product);
  }
  for (; i < n; ++i) {
    products[i] = weights[i] * row_scales[i];
    largest = vmaxq_f32(largest, vdupq_n_f32(products[i]));
  }
  for (; i % 8 != 0; ++i) products[i] = 0;
  const float most = vmaxvq_f32(largest);  // no number where one of them is none
  const float factor = most >= kLeast ? Native::kMostWeight / most : 0.0f;
  for (int64_t j = 0; j < i; j += 8) {
    const uint16x8_t numbers =
        vcombine_u16(vqmovn_u32(vcvtnq_u32_f32(vmulq_n_f32(vld1q_f32(products + j), factor))),
                     vqmovn_u32(vcvtnq_u32_f32(vmulq_n_f32(vld1q_f32(products + j + 4), factor))));
    vst1_u8(to + 2 * j, vshrn_n_u16(numbers, 8));
    vst1_u8(to + 2 * j + 8, vmovn_u16(numbers));
  }
  return most / Native::kMostWeight;
}

}  // namespace
}  // namespace sluice::impl::cpu::primitives
