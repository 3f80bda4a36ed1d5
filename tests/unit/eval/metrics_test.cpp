// The table of metrics: every row is documented and moves as it says. Values are tested in
// compare_test.cpp.

#include "eval/compare/metrics.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "eval/compare/compare.h"
#include "paths.h"

namespace sluice::impl::test {
namespace {

// At run time: GCC's sanitizers make the comparison no constant.
TEST(Metrics, EveryRowHasANumberOfTokens) {
  for (const Metric& row : kMetrics) EXPECT_NE(row.of_token, nullptr) << row.key;
}

TEST(Metrics, EveryKeyOfResultsIsDocumented) {
  std::ifstream file(test::docs_dir() / "results.md");
  const std::string docs{std::istreambuf_iterator<char>(file), {}};
  ASSERT_FALSE(docs.empty());
  const auto expect = [&](std::string_view key) {
    EXPECT_NE(docs.find("`" + std::string(key) + "`"), docs.npos)
        << key << " is not in docs/results.md";
  };
  for (const Metric& row : kMetrics) {
    if (row.written) expect(row.key);
    if (!row.error_key.empty()) expect(row.error_key);
  }
}

// Every token is the base's likeliest, so noise makes predictions worse by every metric.
TEST(Metrics, NoiseIsWorseThanTheBaseInTheDirectionThatTheRowTells) {
  constexpr size_t kVocab = 50;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 2);
  Comparison same, noisy;
  for (int token = 0; token < 200; ++token) {
    std::vector<float> base(kVocab), other(kVocab);
    for (size_t i = 0; i < kVocab; ++i) other[i] = (base[i] = normal(random)) + normal(random);
    BaseRow row;
    row.set(base);
    const auto top = std::ranges::max_element(base) - base.begin();
    same.add(row.against(base, static_cast<int32_t>(top)));
    noisy.add(row.against(other, static_cast<int32_t>(top)));
  }
  for (const Metric& row : kMetrics) {
    if (row.better == Metric::Better::kLower) {
      EXPECT_GT(noisy.value(row), same.value(row)) << row.key;
    } else if (row.better == Metric::Better::kHigher) {
      EXPECT_LT(noisy.value(row), same.value(row)) << row.key;
    } else {
      EXPECT_EQ(noisy.value(row), same.value(row)) << row.key;
    }
  }
}

TEST(Metrics, OfNoTokensAreDefined) {
  const Comparison none;
  for (const Metric& row : kMetrics) {
    EXPECT_EQ(none.value(row), row.statistic == Metric::Statistic::kExpOfMean ? 1 : 0) << row.key;
    if (row.has_error()) {
      EXPECT_EQ(none.error(row), 0) << row.key;
    }
  }
}

}  // namespace
}  // namespace sluice::impl::test
