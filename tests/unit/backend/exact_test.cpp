// The sums that decide pairs, and who is exempt. docs/algorithm.md, section 1.

#include "backend/exact.h"

#include <gtest/gtest.h>

#include <cmath>

#include "parity/backends.h"

namespace sluice::impl {
namespace {

ConstTensor rows_of(const std::vector<float>& values, int64_t d) {
  return {values.data(), DType::kF32, {static_cast<int64_t>(values.size()) / d, d}};
}

UnitRow unit(const ConstTensor& rows, int64_t row) { return {rows, row, inverse_norm(rows, row)}; }

TEST(InverseNorm, IsZeroForZerosAndExactForPythagoras) {
  const std::vector<float> values = {3, 4, 0, 0, 0x1p-100f, 0};
  const ConstTensor rows = rows_of(values, 2);
  EXPECT_EQ(inverse_norm(rows, 0), 0.2);
  EXPECT_EQ(inverse_norm(rows, 1), 0.0);
  EXPECT_EQ(inverse_norm(rows, 2), 0x1p100);  // its square is no float32
}

TEST(ExactCosine, IsTheFloat64SumOfFloat32UnitElements) {
  constexpr int64_t kWidth = 193;
  const auto values = test::random_values(2 * kWidth, 3);
  const ConstTensor rows = rows_of(values, kWidth);
  double expected = 0;
  for (int64_t i = 0; i < kWidth; ++i) {
    const auto a = static_cast<float>(double{rows.row<float>(0)[i]} * inverse_norm(rows, 0));
    const auto b = static_cast<float>(double{rows.row<float>(1)[i]} * inverse_norm(rows, 1));
    expected += double{a} * double{b};
  }
  EXPECT_EQ(exact_cosine(unit(rows, 0), unit(rows, 1)), expected);
  EXPECT_EQ(exact_cosine(unit(rows, 1), unit(rows, 0)), expected);
}

TEST(ExactCosine, OfBFloat16RowsIsThatOfTheSameNumbersInFloat32) {
  constexpr int64_t kWidth = 37;
  const auto values = test::random_values(2 * kWidth, 4, DType::kBF16);
  std::vector<BFloat16> narrow;
  for (const float x : values) narrow.push_back(to_bfloat16(x));
  const ConstTensor wide_rows = rows_of(values, kWidth);
  const ConstTensor narrow_rows(narrow.data(), DType::kBF16, {2, kWidth});
  const double expected = exact_cosine(unit(wide_rows, 0), unit(wide_rows, 1));
  EXPECT_EQ(exact_cosine(unit(narrow_rows, 0), unit(narrow_rows, 1)), expected);
  EXPECT_EQ(exact_cosine(unit(wide_rows, 0), unit(narrow_rows, 1)), expected);
  EXPECT_EQ(exact_cosine(unit(narrow_rows, 0), unit(wide_rows, 1)), expected);
}

TEST(ExactCosine, WithARowOfZerosIsZero) {
  const std::vector<float> values = {0, 0, 1, 2};
  const ConstTensor rows = rows_of(values, 2);
  EXPECT_EQ(exact_cosine(unit(rows, 0), unit(rows, 1)), 0.0);
  EXPECT_EQ(exact_cosine(unit(rows, 0), unit(rows, 0)), 0.0);
}

std::vector<bool> exempt(ExemptTokens tokens, const std::vector<double>& norms) {
  std::vector<bool> flags;
  for (const double norm : norms) flags.push_back(tokens.next(norm));
  return flags;
}

TEST(ExemptTokens, AreTheFirstOnesWithoutARatio) {
  EXPECT_FALSE(ExemptTokens(2, 0).needs_norms());
  EXPECT_EQ(exempt(ExemptTokens(2, 0), {1, 1, 1, 1e9}),
            (std::vector<bool>{true, true, false, false}));
}

TEST(ExemptTokens, AreAboveTheRatioOfTheMedianWithThemselvesInIt) {
  // Exactly at the limit is not above it.
  EXPECT_EQ(exempt(ExemptTokens(0, 8), {1, 1, 1, 8}),
            (std::vector<bool>{false, false, false, false}));
  // Medians so far: 1, 5, 1, 5, 1.
  EXPECT_EQ(exempt(ExemptTokens(0, 8), {1, 9, 1, 9, 1}),
            (std::vector<bool>{false, false, false, false, false}));
  EXPECT_EQ(exempt(ExemptTokens(0, 8), {1, 1, 9, 8, 8.5}),
            (std::vector<bool>{false, false, true, false, false}));
}

TEST(ExemptTokens, LeaveSinksOutOfTheMedian) {
  EXPECT_EQ(exempt(ExemptTokens(3, 8), {100, 100, 100, 1, 1, 9}),
            (std::vector<bool>{true, true, true, false, false, true}));
}

TEST(ExemptTokens, HoldTheMedianAfter256Tokens) {
  ExemptTokens tokens(1, 8);
  tokens.next(1000);                                             // the sink
  for (int i = 0; i < 256; ++i) ASSERT_FALSE(tokens.next(1.0));  // the median for ever
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(tokens.next(16.0));
  EXPECT_FALSE(tokens.next(8.0));
}

}  // namespace
}  // namespace sluice::impl
