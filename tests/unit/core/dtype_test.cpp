// Conversions against arithmetic in float64.

#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice::impl {
namespace {

// The bf16 number nearest to x, ties to the even one; x is finite. Numbers of the same sign follow
// each other in the order of their bits, so the candidates are x cut short and the next.
uint16_t nearest_bfloat16(float x) {
  const auto below = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
  const auto above = static_cast<uint16_t>(below + 1);
  const auto value = [](uint16_t bits) {  // infinity stands where the next number would
    const double magnitude =
        (bits & 0x7fffu) == 0x7f80u ? 0x1p128 : double{std::abs(to_float(BFloat16{bits}))};
    return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
  };
  const double down = std::abs(x - value(below)), up = std::abs(value(above) - x);
  if (down != up) return down < up ? below : above;
  return below % 2 == 0 ? below : above;
}

TEST(BFloat16, RoundsToNearestTiesToEven) {
  // Every bf16 pattern with what stands between it and the next: nothing, the least, just below
  // half, half, just above half, just below all.
  for (uint32_t upper = 0; upper < 0x10000; ++upper)
    for (const uint32_t lower : {0x0u, 0x1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float x = std::bit_cast<float>((upper << 16) | lower);
      if (!std::isfinite(x)) continue;
      ASSERT_EQ(to_bfloat16(x).bits, nearest_bfloat16(x)) << std::hexfloat << x;
    }
}

TEST(BFloat16, KeepsInfinitiesAndNaN) {
  EXPECT_EQ(to_bfloat16(INFINITY).bits, 0x7f80);
  EXPECT_EQ(to_bfloat16(-INFINITY).bits, 0xff80);
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0xff800001u, 0xffffffffu, 0x7f80ffffu}) {
    const BFloat16 narrow = to_bfloat16(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(to_float(narrow))) << std::hex << bits;
    EXPECT_EQ(narrow.bits >> 15, bits >> 31);
  }
}

TEST(BFloat16, SurvivesConversionToFloatAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = to_float(BFloat16{static_cast<uint16_t>(bits)});
    if (std::isnan(x)) continue;
    ASSERT_EQ(to_bfloat16(x).bits, bits);
  }
}

TEST(Half, EveryPatternIsItsValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31),
              mantissa = static_cast<int>(bits & 1023);
    const float got = half_to_float(static_cast<uint16_t>(bits));
    ASSERT_EQ(std::signbit(got), bits >= 0x8000) << std::hex << bits;
    if (exponent == 31) {
      ASSERT_EQ(std::isinf(got), mantissa == 0) << std::hex << bits;
      ASSERT_EQ(std::isnan(got), mantissa != 0) << std::hex << bits;
      continue;
    }
    const double value =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(std::abs(double{got}), value) << std::hex << bits;
  }
}

TEST(DType, BlocksHoldTheBitsTheirNamesSay) {
  struct Case {
    DType dtype;
    const char* name;
    int64_t elements, bytes;
  };
  // Q*_0: a half scale; Q*_1: scale and minimum; Q*_K: blocks of 256 with scales of scales.
  const Case cases[] = {{DType::kF32, "f32", 1, 4},
                        {DType::kF16, "f16", 1, 2},
                        {DType::kBF16, "bf16", 1, 2},
                        {DType::kI32, "i32", 1, 4},
                        {DType::kI8, "i8", 1, 1},
                        {DType::kQ4_0, "q4_0", 32, 2 + 32 * 4 / 8},
                        {DType::kQ4_1, "q4_1", 32, 4 + 32 * 4 / 8},
                        {DType::kQ5_0, "q5_0", 32, 2 + 32 * 5 / 8},
                        {DType::kQ5_1, "q5_1", 32, 4 + 32 * 5 / 8},
                        {DType::kQ8_0, "q8_0", 32, 2 + 32},
                        {DType::kQ4_K, "q4_k", 256, 4 + 12 + 256 * 4 / 8},
                        {DType::kQ5_K, "q5_k", 256, 4 + 12 + 256 * 5 / 8},
                        {DType::kQ6_K, "q6_k", 256, 2 + 16 + 256 * 6 / 8}};
  for (const Case& c : cases) {
    EXPECT_EQ(dtype_name(c.dtype), c.name);
    EXPECT_EQ(block_size(c.dtype).elements, c.elements) << c.name;
    EXPECT_EQ(block_size(c.dtype).bytes, c.bytes) << c.name;
  }
}

TEST(Half, EveryHalfComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = half_to_float(half);
    if (std::isnan(value))
      ASSERT_TRUE(std::isnan(half_to_float(float_to_half(value))));
    else
      ASSERT_EQ(float_to_half(value), half);
  }
}

TEST(Half, RoundsToNearestTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const auto below = static_cast<uint16_t>(bits), above = static_cast<uint16_t>(bits + 1);
    const float low = half_to_float(below), high = half_to_float(above);
    const float middle = (low + high) / 2;  // exact
    ASSERT_EQ(float_to_half(middle), bits % 2 == 0 ? below : above) << middle;
    ASSERT_EQ(float_to_half(std::nextafter(middle, 0.0f)), below) << middle;
    ASSERT_EQ(float_to_half(-std::nextafter(middle, high)), above | 0x8000) << middle;
  }
  EXPECT_EQ(float_to_half(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(-1e30f), 0xfc00);
}

}  // namespace
}  // namespace sluice::impl
