// The paired bootstrap against cases whose distribution is known.

#include "eval/compare/paired.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace sluice::impl::test {
namespace {

std::vector<WindowSum> windows_of(const std::vector<double>& means, int64_t n_tokens) {
  std::vector<WindowSum> out;
  for (const double mean : means) out.push_back({mean * static_cast<double>(n_tokens), n_tokens});
  return out;
}

TEST(Paired, TooFewWindowsHaveNoInterval) {
  EXPECT_FALSE(paired_interval(windows_of({1, 2, 3, 4, 5}, 10)).has_value());
  EXPECT_FALSE(paired_interval({}).has_value());
  EXPECT_TRUE(paired_interval(windows_of({1, 2, 3, 4, 5, 6}, 10)).has_value());
}

TEST(Paired, EqualDifferencesHaveAnIntervalOfNoWidth) {
  const auto found = paired_interval(windows_of(std::vector<double>(8, 0.25), 4)).value();
  EXPECT_EQ(found.mean, 0.25);
  EXPECT_EQ(found.low, 0.25);
  EXPECT_EQ(found.high, 0.25);
}

// Ten windows, five of 0 and five of 1: a resampled mean is K / 10 with K binomial(10, 1/2). By
// hand P(K <= 1) = 11/1024 < 2.5% < 56/1024 = P(K <= 2), so the percentiles are 0.2 and 0.8. 10,000
// draws are off by 0.0016 in each of these shares, far less than their distances from 2.5%.
TEST(Paired, CoinTossesHaveTheQuantilesOfTheBinomial) {
  const auto windows = windows_of({0, 0, 0, 0, 0, 1, 1, 1, 1, 1}, 8);
  for (const uint64_t seed : {0u, 1u, 2u}) {
    const auto found = paired_interval(windows, seed).value();
    EXPECT_EQ(found.mean, 0.5);
    EXPECT_EQ(found.low, 0.2);
    EXPECT_EQ(found.high, 0.8);
  }
}

// A short window counts by its tokens.
TEST(Paired, MeansAreOfTokens) {
  std::vector<WindowSum> windows(6, {.sum = 10, .n_tokens = 10});
  windows.push_back({.sum = -5, .n_tokens = 1});
  EXPECT_DOUBLE_EQ(paired_interval(windows)->mean, 55.0 / 61);
}

TEST(Paired, TheSameSeedGivesTheSameInterval) {
  const auto windows = windows_of({0.3, -0.1, 0.7, 0.2, 0.9, -0.4, 0.15}, 16);
  const auto a = paired_interval(windows, 5).value(), b = paired_interval(windows, 5).value();
  EXPECT_EQ(a.low, b.low);
  EXPECT_EQ(a.high, b.high);
  EXPECT_LT(a.low, a.mean);
  EXPECT_LT(a.mean, a.high);
}

}  // namespace
}  // namespace sluice::impl::test
