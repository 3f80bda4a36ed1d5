#include "subspace/moments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/threads.h"

namespace sluice::impl {
namespace {

constexpr int64_t kWidth = 5;

// Rows of small whole numbers: every sum of products is exact.
std::vector<float> whole_rows(int64_t n) {
  std::vector<float> rows;
  for (int64_t i = 0; i < n * kWidth; ++i)
    rows.push_back(static_cast<float>((i * i + 3 * i) % 11 - 5));
  return rows;
}

ConstTensor view(const std::vector<float>& rows) {
  return {rows.data(), DType::kF32, {static_cast<int64_t>(rows.size()) / kWidth, kWidth}};
}

std::vector<double> plain_sum(const std::vector<float>& rows) {
  std::vector<double> sum(kWidth * kWidth);
  for (size_t row = 0; row < rows.size(); row += kWidth)
    for (size_t i = 0; i < kWidth; ++i)
      for (size_t j = 0; j < kWidth; ++j)
        sum[i * kWidth + j] += double{rows[row + i]} * rows[row + j];
  return sum;
}

void expect_upper_triangle(const std::vector<double>& actual, const std::vector<double>& expected,
                           double tolerance) {
  for (size_t i = 0; i < kWidth; ++i)
    for (size_t j = i; j < kWidth; ++j)
      EXPECT_NEAR(actual[i * kWidth + j], expected[i * kWidth + j], tolerance) << i << ", " << j;
}

TEST(Moments, AreTheSumOfProductsWhateverTheBlocks) {
  const std::vector<float> rows = whole_rows(700);  // more than two blocks
  Moments whole(kWidth), pieces(kWidth);
  whole.add(view(rows));
  for (int64_t first = 0; first < 700; first += 77)
    pieces.add(view(rows).rows_from(first, std::min<int64_t>(77, 700 - first)));
  EXPECT_EQ(whole.n_rows(), 700);
  EXPECT_EQ(pieces.n_rows(), 700);
  const std::vector<double> expected = plain_sum(rows);
  double trace = 0;
  for (size_t i = 0; i < kWidth; ++i) trace += expected[i * kWidth + i];
  EXPECT_EQ(whole.total(), trace);
  expect_upper_triangle(whole.take(), expected, 0);
  expect_upper_triangle(pieces.take(), expected, 0);
}

TEST(Moments, TakeBf16AndRowsThatLieApart) {
  const std::vector<float> rows = whole_rows(10);
  std::vector<BFloat16> apart;  // a column of another matrix behind each row
  for (size_t row = 0; row < 10; ++row) {
    for (size_t i = 0; i < kWidth; ++i) apart.push_back(to_bfloat16(rows[row * kWidth + i]));
    apart.push_back(to_bfloat16(99));
  }
  Moments moments(kWidth);
  moments.add(ConstTensor(apart.data(), DType::kBF16, {10, kWidth}).with_row_stride(kWidth + 1));
  expect_upper_triangle(moments.take(), plain_sum(rows), 0);
}

TEST(Moments, OfUnitRowsLeaveOutZerosAndExemptRows) {
  std::vector<float> rows = whole_rows(4);
  for (size_t i = 0; i < kWidth; ++i) rows[2 * kWidth + i] = 0;
  Moments moments(kWidth);
  moments.add_unit(view(rows), {true, false, false, false});
  EXPECT_EQ(moments.n_rows(), 2);
  EXPECT_NEAR(moments.total(), 2, 1e-15);
  std::vector<double> expected(kWidth * kWidth);
  for (const size_t row : {1u, 3u}) {
    const std::vector<float> one(rows.begin() + static_cast<int64_t>(row * kWidth),
                                 rows.begin() + static_cast<int64_t>((row + 1) * kWidth));
    const std::vector<double> sum = plain_sum(one);
    double squares = 0;
    for (size_t i = 0; i < kWidth; ++i) squares += sum[i * kWidth + i];
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += sum[i] / squares;
  }
  expect_upper_triangle(moments.take(), expected, 1e-15);
}

TEST(Moments, ShowAnActivationThatIsNotFinite) {
  std::vector<float> rows = whole_rows(3);
  rows[7] = std::numeric_limits<float>::quiet_NaN();
  Moments moments(kWidth);
  moments.add(view(rows));
  EXPECT_FALSE(std::isfinite(moments.total()));
}

}  // namespace
}  // namespace sluice::impl
