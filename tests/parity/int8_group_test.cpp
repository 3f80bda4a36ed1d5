// Queries of one key head over rows of int8 (primitives/group_rows.h), by each instruction set that
// this CPU has.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "backend/cpu/primitives/group_rows.h"

namespace sluice::impl::cpu::primitives {
namespace {

using Native = NativeInt8Group;

struct Case {
  int64_t n, d, n_queries;
};
constexpr Case kCases[] = {{1, 16, 1},  {3, 16, 2},   {7, 48, 3},    {8, 64, 3},   {9, 64, 4},
                           {31, 80, 5}, {128, 64, 7}, {100, 128, 8}, {128, 512, 6}};

class Rows {
 public:
  explicit Rows(const Case& c) : c_(c), random_(static_cast<unsigned>(c.n * c.d + c.n_queries)) {
    std::uniform_int_distribution<int> byte(-127, 127);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> positive(0, 1);
    for (int64_t i = 0; i < c.n * c.d; ++i) rows.push_back(static_cast<int8_t>(byte(random_)));
    for (int64_t i = 0; i < c.n_queries * c.d; ++i) queries.push_back(normal(random_));
    for (int64_t i = 0; i < c.n; ++i) row_scales.push_back(0.01f + positive(random_));
    for (int64_t i = 0; i < c.n_queries * stride(); ++i) weights.push_back(positive(random_));
  }

  int64_t stride() const { return (c_.n + Native::kRows - 1) / Native::kRows * Native::kRows; }

  std::vector<float> dot(const Native& kernels) const {
    std::vector<int8_t> terms(2 * queries.size());
    std::vector<float> scales(static_cast<size_t>(c_.n_queries)), scores = weights;
    kernels.pack(queries.data(), c_.n_queries, c_.d, terms.data(), scales.data());
    kernels.dot(group(scores), {terms.data(), scales.data()}, row_scales.data());
    return scores;
  }
  std::vector<float> mix(const Native& kernels) const {
    std::vector<float> scores = weights, sums(queries.size(), 0.5f);
    kernels.mix(group(scores), row_scales.data(), sums.data());
    return sums;
  }

  std::vector<int8_t> rows;
  std::vector<float> queries, row_scales, weights;

 private:
  GroupRows<int8_t> group(std::vector<float>& scores) const {
    return {rows.data(), c_.n, c_.d, c_.n_queries, scores.data(), stride()};
  }

  Case c_;
  std::mt19937 random_;
};

void expect_close_to_float64(const Native& kernels, const Case& c) {
  constexpr double kRound = 0x1p-22;  // of a few roundings to f32
  const Rows of(c);
  const auto at = [](const auto& values, int64_t i) {
    return static_cast<double>(values[static_cast<size_t>(i)]);
  };
  const std::vector<float> scores = of.dot(kernels), sums = of.mix(kernels);
  for (int64_t q = 0; q < c.n_queries; ++q) {
    double largest = 0;
    for (int64_t k = 0; k < c.d; ++k)
      largest = std::max(largest, std::abs(at(of.queries, q * c.d + k)));
    for (int64_t j = 0; j < c.n; ++j) {
      double exact = 0, moved = 0;  // by half a unit of every number of the query
      for (int64_t k = 0; k < c.d; ++k) {
        exact += at(of.queries, q * c.d + k) * at(of.rows, j * c.d + k);
        moved += std::abs(at(of.rows, j * c.d + k)) * largest * (0.5 / Native::kMostQuery + kRound);
      }
      const double scale = at(of.row_scales, j);
      EXPECT_NEAR(at(scores, q * of.stride() + j), exact * scale,
                  (moved + kRound * std::abs(exact)) * scale);
    }
    double most = 0;
    for (int64_t j = 0; j < c.n; ++j)
      most = std::max(most, at(of.weights, q * of.stride() + j) * at(of.row_scales, j));
    for (int64_t k = 0; k < c.d; ++k) {
      double exact = 0.5, moved = kRound;
      for (int64_t j = 0; j < c.n; ++j) {
        const double row = at(of.rows, j * c.d + k);
        exact += at(of.weights, q * of.stride() + j) * at(of.row_scales, j) * row;
        moved += std::abs(row) * most * (0.5 / Native::kMostWeight + kRound);
      }
      EXPECT_NEAR(at(sums, q * c.d + k), exact, moved + kRound * std::abs(exact));
    }
  }
}

struct NamedGroup {
  const char* name;
  const Native* (*kernels)();
};
class EveryInt8Group : public testing::TestWithParam<NamedGroup> {};

TEST_P(EveryInt8Group, AgreesWithFloat64ToTheRoundingOfQueriesAndWeights) {
  const Native* kernels = GetParam().kernels();
  if (kernels == nullptr) GTEST_SKIP() << "this CPU has not got these instructions";
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.n << " rows of " << c.d << ", " << c.n_queries);
    expect_close_to_float64(*kernels, c);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryInt8Group,
                         testing::Values(NamedGroup{"i8mm", int8_group_i8mm},
                                         NamedGroup{"dotprod", int8_group_dotprod}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Int8Group, InstructionSetsGiveTheSameBits) {
  if (int8_group_i8mm() == nullptr || int8_group_dotprod() == nullptr)
    GTEST_SKIP() << "this CPU has one of them at most";
  for (const Case& c : kCases) {
    const Rows of(c);
    const std::vector<float> a = of.dot(*int8_group_i8mm()), b = of.dot(*int8_group_dotprod());
    for (int64_t q = 0; q < c.n_queries; ++q)  // what lies behind the last row is any
      for (int64_t j = 0; j < c.n; ++j) {
        const auto at = static_cast<size_t>(q * of.stride() + j);
        EXPECT_EQ(a[at], b[at]);
      }
    EXPECT_EQ(of.mix(*int8_group_i8mm()), of.mix(*int8_group_dotprod()));
  }
}

}  // namespace
}  // namespace sluice::impl::cpu::primitives
