// Blocks of one type each, for quantise.cpp.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"

namespace sluice::impl::quantise {

// A float as a block stores it, and back.
struct Half {
  explicit Half(float x) : bits(float_to_half(x)), value(half_to_float(bits)) {}
  void put(std::byte* to) const { std::memcpy(to, &bits, sizeof(bits)); }
  uint16_t bits;
  float value;
};

// x over step, rounded, within [low, high]. A step of zero stands for values that are all zero.
inline int steps(float x, float step, int low, int high) {
  if (step == 0) return low > 0 ? low : 0;
  const float n = std::nearbyint(x / step);
  return n < static_cast<float>(low)    ? low
         : n > static_cast<float>(high) ? high
                                        : static_cast<int>(n);
}

// 32 values each.
void write_q8_0(const float* x, std::byte* block);
void write_q4_0(const float* x, std::byte* block);
void write_q4_1(const float* x, std::byte* block);
void write_q5_0(const float* x, std::byte* block);
void write_q5_1(const float* x, std::byte* block);
// 256 values each.
void write_q4_k(const float* x, std::byte* block);
void write_q5_k(const float* x, std::byte* block);
void write_q6_k(const float* x, std::byte* block);

}  // namespace sluice::impl::quantise
