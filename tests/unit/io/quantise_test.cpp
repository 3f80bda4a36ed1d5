// Rows -> blocks: what expanding them again gives.

#include "io/quantise/quantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "core/error.h"
#include "io/gguf_blocks.h"

namespace sluice::impl {
namespace {

constexpr DType kTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                            DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

std::vector<std::byte> blocks_of(DType type, const std::vector<float>& x) {
  const BlockSize block = block_size(type);
  std::vector<std::byte> out(x.size() / static_cast<size_t>(block.elements) *
                             static_cast<size_t>(block.bytes));
  quantise_blocks(type, x, out.data());
  return out;
}

std::vector<float> expanded(DType type, const std::vector<std::byte>& blocks, size_t n) {
  std::vector<float> out(n);
  expand_blocks(type, blocks.data(), static_cast<int64_t>(n) / block_size(type).elements,
                out.data());
  return out;
}

std::vector<float> round_trip(DType type, const std::vector<float>& x) {
  return expanded(type, blocks_of(type, x), x.size());
}

// Weights of a trained matrix are near normal; a few in a thousand are far out.
std::vector<float> weights(size_t n) {
  std::mt19937 random(7);
  std::vector<float> x(n);
  for (float& value : x) {
    float sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<float>(random() >> 8) * 0x1p-24f;
    value = 0.02f * sum * (random() % 500 == 0 ? 4.0f : 1.0f);
  }
  return x;
}

double relative_error(DType type, const std::vector<float>& x) {
  const std::vector<float> got = round_trip(type, x);
  double error = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += (double{got[i]} - x[i]) * (double{got[i]} - x[i]);
    size += double{x[i]} * x[i];
  }
  return std::sqrt(error / size);
}

TEST(Quantise, SmallBlocksErrByAStepAtMost) {
  const std::vector<float> x = weights(32 * 400);
  for (const DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1}) {
    const std::vector<float> got = round_trip(type, x);
    for (size_t block = 0; block < x.size(); block += 32) {
      const auto [low, high] = std::minmax_element(x.begin() + static_cast<ptrdiff_t>(block),
                                                   x.begin() + static_cast<ptrdiff_t>(block) + 32);
      const double most = std::max(std::abs(*low), std::abs(*high)), range = double{*high} - *low;
      // Half a step; a whole one where the extreme's counterpart has no step of its own. Scales and
      // minima are halves, off by 2^-11 of themselves.
      const double step = type == DType::kQ8_0   ? most / 127 / 2
                          : type == DType::kQ4_0 ? most / 8
                          : type == DType::kQ5_0 ? most / 16
                          : type == DType::kQ4_1 ? range / 15 / 2
                                                 : range / 31 / 2;
      const double bound = step + (most + range) * 0x1p-11;
      for (size_t i = block; i < block + 32; ++i)
        ASSERT_LE(std::abs(double{got[i]} - x[i]), bound) << dtype_name(type) << ", " << i;
    }
  }
}

TEST(Quantise, LargeBlocksErrLessThanSmallOnesOfAsManyBits) {
  const std::vector<float> x = weights(256 * 200);
  EXPECT_LT(relative_error(DType::kQ4_K, x), 0.95 * relative_error(DType::kQ4_0, x));
  EXPECT_LT(relative_error(DType::kQ5_K, x), 0.95 * relative_error(DType::kQ5_0, x));
  EXPECT_LT(relative_error(DType::kQ6_K, x), 0.6 * relative_error(DType::kQ5_K, x));
  EXPECT_LT(relative_error(DType::kQ8_0, x), 0.5 * relative_error(DType::kQ6_K, x));
  EXPECT_LT(relative_error(DType::kQ8_0, x), 0.01);
  EXPECT_LT(relative_error(DType::kQ4_K, x), 0.1);
}

TEST(Quantise, ExpandedQ8BlocksQuantiseToThemselves) {
  const std::vector<std::byte> blocks = blocks_of(DType::kQ8_0, weights(32 * 100));
  EXPECT_EQ(blocks_of(DType::kQ8_0, expanded(DType::kQ8_0, blocks, 32 * 100)), blocks);
}

TEST(Quantise, ZerosStayZeros) {
  for (const DType type : kTypes)
    for (const float value : round_trip(type, std::vector<float>(512, 0.0f)))
      ASSERT_EQ(value, 0.0f) << dtype_name(type);
}

TEST(Quantise, ConstantsAndOneSidedBlocksKeepTheirSize) {
  for (const DType type : kTypes)
    for (const float size : {0.5f, -0.5f}) {
      for (const float value : round_trip(type, std::vector<float>(256, size)))
        ASSERT_NEAR(value, size, 0.01) << dtype_name(type);
      std::vector<float> ramp(256);
      for (size_t i = 0; i < ramp.size(); ++i)
        ramp[i] = size * (1 + static_cast<float>(i % 32) / 31);
      const std::vector<float> got = round_trip(type, ramp);
      for (size_t i = 0; i < ramp.size(); ++i)
        ASSERT_NEAR(got[i], ramp[i], 0.13) << dtype_name(type);
    }
}

TEST(Quantise, RefusesWhatDoesNotFit) {
  for (const DType type : kTypes)
    for (const float bad : {INFINITY, -INFINITY, NAN, 1e9f}) {
      std::vector<float> x(256, 1.0f);
      x[100] = bad;
      std::vector<std::byte> out(1024);
      EXPECT_THROW(quantise_blocks(type, x, out.data()), Error) << dtype_name(type);
    }
}

}  // namespace
}  // namespace sluice::impl
