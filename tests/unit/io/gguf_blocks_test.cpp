// Expansion of block types: hand-made blocks here, and blocks with values made by an independent
// script in tests/golden/blocks.

#include "io/gguf_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/dtype.h"
#include "io/weight_store.h"
#include "paths.h"
#include "unit/test_files.h"

namespace sluice::impl {
namespace {

using test::as_bytes;
using test::pack;
using test::pack_all;

constexpr uint16_t kHalfTwo = 0x4000;
constexpr uint16_t kHalfThree = 0x4200;

std::vector<float> expand_one(DType dtype, const std::string& block) {
  std::vector<float> out(static_cast<size_t>(block_size(dtype).elements));
  EXPECT_EQ(static_cast<int64_t>(block.size()), block_size(dtype).bytes);
  expand_blocks(dtype, as_bytes(block).data(), 1, out.data());
  return out;
}

// 16 bytes whose low nibbles count 0..15 and whose high nibbles count 15..0.
std::string counting_nibbles() {
  std::string bytes;
  for (int i = 0; i < 16; ++i) bytes += static_cast<char>(i | ((15 - i) << 4));
  return bytes;
}

TEST(ExpandF16, EveryHalfEqualsTheBranchingConversion) {
  std::vector<uint16_t> halves(1 << 16);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  const std::string data = pack_all(halves);
  std::vector<float> out(halves.size());
  expand_f16(as_bytes(data).data(), static_cast<int64_t>(out.size()), out.data());
  for (size_t i = 0; i < halves.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(half_to_float(halves[i])))
        << i;
}

TEST(ExpandBlocks, Q8_0ScalesSignedBytes) {
  std::string q(32, '\0');
  q[0] = 127;
  q[31] = -128;
  const auto out = expand_one(DType::kQ8_0, pack(kHalfTwo) + q);
  EXPECT_EQ(out[0], 254.0f);
  EXPECT_EQ(out[1], 0.0f);
  EXPECT_EQ(out[31], -256.0f);
}

TEST(ExpandBlocks, Q4_0TakesEightOff) {
  const auto out = expand_one(DType::kQ4_0, pack(kHalfTwo) + counting_nibbles());
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(out[static_cast<size_t>(i)], 2.0f * static_cast<float>(i - 8));
    EXPECT_EQ(out[static_cast<size_t>(i + 16)], 2.0f * static_cast<float>(15 - i - 8));
  }
}

TEST(ExpandBlocks, Q4_1AddsTheMinimum) {
  const auto out = expand_one(DType::kQ4_1, pack(kHalfTwo) + pack(kHalfThree) + counting_nibbles());
  EXPECT_EQ(out[5], 2.0f * 5 + 3);
  EXPECT_EQ(out[16], 2.0f * 15 + 3);
}

TEST(ExpandBlocks, FifthBitsBelongToTheirWeights) {
  const uint32_t high_bits = (1u << 3) | (1u << 20);
  const auto q5_0 = expand_one(DType::kQ5_0, pack(kHalfTwo) + pack(high_bits) + counting_nibbles());
  EXPECT_EQ(q5_0[3], 2.0f * (3 + 16 - 16));
  EXPECT_EQ(q5_0[4], 2.0f * (4 - 16));
  EXPECT_EQ(q5_0[20], 2.0f * (11 + 16 - 16));
  const auto q5_1 = expand_one(
      DType::kQ5_1, pack(kHalfTwo) + pack(kHalfThree) + pack(high_bits) + counting_nibbles());
  EXPECT_EQ(q5_1[3], 2.0f * (3 + 16) + 3);
  EXPECT_EQ(q5_1[4], 2.0f * 4 + 3);
  EXPECT_EQ(q5_1[20], 2.0f * (11 + 16) + 3);
}

// The 12 bytes of eight 6-bit scales 33 + 4s and minima 7s, packed as the format says.
std::string packed_scales() {
  std::string bytes(12, '\0');
  const auto scale = [](int s) { return 33 + 4 * s; };
  const auto min = [](int s) { return 7 * s; };
  for (int s = 0; s < 4; ++s) {
    const auto i = static_cast<size_t>(s);
    bytes[i] = static_cast<char>(scale(s) | (scale(s + 4) >> 4) << 6);
    bytes[i + 4] = static_cast<char>(min(s) | (min(s + 4) >> 4) << 6);
    bytes[i + 8] = static_cast<char>((scale(s + 4) & 0xf) | (min(s + 4) & 0xf) << 4);
  }
  return bytes;
}

TEST(ExpandBlocks, Q4_KUsesTheScaleAndMinimumOfEachSubBlock) {
  const auto out = expand_one(
      DType::kQ4_K, pack(kHalfTwo) + pack(kHalfThree) + packed_scales() + std::string(128, '\x5a'));
  for (int i = 0; i < 256; ++i) {
    const int sub_block = i / 32;
    const int q = sub_block % 2 == 0 ? 0xa : 0x5;
    EXPECT_EQ(out[static_cast<size_t>(i)],
              static_cast<float>(2 * (33 + 4 * sub_block) * q - 3 * 7 * sub_block))
        << i;
  }
}

TEST(ExpandBlocks, Q5_KTakesBitSOfItsHighByteForSubBlockS) {
  const auto out = expand_one(DType::kQ5_K, pack(kHalfTwo) + pack(kHalfThree) + packed_scales() +
                                                std::string(32, '\x96') + std::string(128, '\x5a'));
  for (int i = 0; i < 256; ++i) {
    const int sub_block = i / 32;
    const int q = (sub_block % 2 == 0 ? 0xa : 0x5) + 16 * ((0x96 >> sub_block) & 1);
    EXPECT_EQ(out[static_cast<size_t>(i)],
              static_cast<float>(2 * (33 + 4 * sub_block) * q - 3 * 7 * sub_block))
        << i;
  }
}

TEST(ExpandBlocks, Q6_KUsesTheScaleOfEachSixteenWeights) {
  std::string scales;
  for (int s = 0; s < 16; ++s) scales += static_cast<char>(s * 16 - 128);
  const auto out = expand_one(
      DType::kQ6_K, std::string(128, '\x5a') + std::string(64, '\xe4') + scales + pack(kHalfTwo));
  for (int i = 0; i < 256; ++i) {
    const int quarter = i / 32 % 4;
    const int q = (quarter < 2 ? 0xa : 0x5) + 16 * quarter;  // 0xe4: bit pairs 0, 1, 2, 3
    EXPECT_EQ(out[static_cast<size_t>(i)], static_cast<float>(2 * (i / 16 * 16 - 128) * (q - 32)))
        << i;
  }
}

TEST(ExpandBlocks, PlainTypeBreaksThePromise) {
  float out = 0;
  EXPECT_THROW(expand_blocks(DType::kF32, nullptr, 0, &out), InternalError);
}

class GoldenBlocks : public testing::TestWithParam<DType> {};

// Bit for bit: every weight is rounded once at most (io/gguf_blocks.h), so there is one right
// answer. Only NaNs may differ in payload.
TEST_P(GoldenBlocks, EqualTheScriptsValues) {
  const std::filesystem::path dir = test::golden_dir() / "blocks";
  std::string name(dtype_name(GetParam()));
  std::transform(name.begin(), name.end(), name.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << "no golden blocks; run tools/make_golden.py";
  const std::string source = test::read_bytes(dir / (name + ".bin"));
  const std::string expected_bytes = test::read_bytes(dir / (name + ".f32"));
  const BlockSize block = block_size(GetParam());
  ASSERT_FALSE(source.empty());
  ASSERT_EQ(static_cast<int64_t>(source.size()) % block.bytes, 0);
  const int64_t count = static_cast<int64_t>(source.size()) / block.bytes * block.elements;
  ASSERT_EQ(expected_bytes.size(), static_cast<size_t>(count) * sizeof(float));
  std::vector<float> expected(static_cast<size_t>(count));
  std::memcpy(expected.data(), expected_bytes.data(), expected_bytes.size());

  // One byte off, so that no load is aligned.
  const std::string shifted = "?" + source;
  const StoredTensor tensor{name, GetParam(), Shape{count}, as_bytes(shifted).subspan(1)};
  std::vector<float> actual(expected.size());
  expand(tensor, 0, actual);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i]))
        << "element " << i << ": " << actual[i] << ", expected " << expected[i];
  }
}

INSTANTIATE_TEST_SUITE_P(, GoldenBlocks,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0,
                                         DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                         DType::kQ4_K, DType::kQ5_K, DType::kQ6_K),
                         [](const auto& param) { return std::string(dtype_name(param.param)); });

}  // namespace
}  // namespace sluice::impl
