// Divergence of predictions against values computed by hand, and their sums over tokens.

#include "eval/compare/compare.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>

namespace sluice::impl::test {
namespace {

TokenComparison compare(const std::vector<float>& base, const std::vector<float>& other,
                        int32_t next) {
  BaseRow row;
  row.set(base);
  return row.against(other, next);
}

// Scores whose probabilities are these.
std::vector<float> scores_of(const std::vector<double>& probabilities, double shift = 0) {
  std::vector<float> scores;
  for (const double p : probabilities) scores.push_back(static_cast<float>(std::log(p) + shift));
  return scores;
}

// The logarithms above are rounded to float32, at most 2^-22 for those below 4.
constexpr double kRounded = 2.4e-7;

TEST(BaseRow, DivergenceOfTwoCoinsIsTheTextbookValue) {
  const TokenComparison token = compare(scores_of({0.5, 0.5}), scores_of({0.9, 0.1}), 1);
  // 0.5 ln(0.5 / 0.9) + 0.5 ln(0.5 / 0.1) = ln(0.5 / 0.3)
  EXPECT_NEAR(token.kl, 0.5108256237659907, 2 * kRounded);
  EXPECT_NEAR(token.base_loss, std::log(2), 2 * kRounded);
  EXPECT_NEAR(token.loss, std::log(10), 2 * kRounded);
  EXPECT_NEAR(token.delta_p, 0.1 - 0.5, 2 * kRounded);
}

TEST(BaseRow, DivergenceIsTakenFromTheBase) {
  const TokenComparison token = compare(scores_of({0.9, 0.1}), scores_of({0.5, 0.5}), 0);
  // 0.9 ln(0.9 / 0.5) + 0.1 ln(0.1 / 0.5)
  EXPECT_NEAR(token.kl, 0.3680642071684971, 2 * kRounded);
  EXPECT_NEAR(token.delta_p, 0.5 - 0.9, 2 * kRounded);
}

TEST(BaseRow, AShiftOfAllScoresChangesNothing) {
  const std::vector<double> p = {0.2, 0.3, 0.5}, q = {0.1, 0.6, 0.3};
  const TokenComparison plain = compare(scores_of(p), scores_of(q), 2);
  const TokenComparison shifted = compare(scores_of(p, 200), scores_of(q, -300), 2);
  // Scores near 300 are rounded to 2^-16.
  EXPECT_NEAR(shifted.kl, plain.kl, 4 * 0x1p-16);
  EXPECT_NEAR(shifted.delta_p, plain.delta_p, 4 * 0x1p-16);
  EXPECT_NEAR(plain.kl, 0.2 * std::log(2) + 0.3 * std::log(0.5) + 0.5 * std::log(5.0 / 3),
              2 * kRounded);
}

TEST(BaseRow, EqualScoresDivergeByExactlyNothing) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> scores(1000);
  for (float& x : scores) x = normal(random);
  const TokenComparison token = compare(scores, scores, 17);
  EXPECT_EQ(token.kl, 0);
  EXPECT_EQ(token.delta_p, 0);
  EXPECT_EQ(token.loss, token.base_loss);
  EXPECT_TRUE(token.same_top);
}

TEST(BaseRow, SmallDivergencesAreNotLostToRoundOff) {
  // Two tokens of scores 0 and d: KL = log((1 + e^d) / 2) - d / 2 = d^2 / 8 + O(d^4).
  const float d = 0x1p-16f;
  const TokenComparison token = compare({0, 0}, {0, d}, 0);
  const double expected = double{d} * double{d} / 8;  // 2.9e-11
  // Differences of logarithms near 0.7 in float64: some units of 2^-53.
  EXPECT_NEAR(token.kl, expected, 8 * 0x1p-53);
}

TEST(BaseRow, TheLikeliestTokenIsTheFirstOfEquals) {
  EXPECT_TRUE(compare({1, 2, 2}, {0, 3, 3}, 0).same_top);
  EXPECT_FALSE(compare({1, 2, 2}, {0, 2, 3}, 0).same_top);
}

TEST(BaseRow, ATokenNeitherAllowsCountsForNothing) {
  const float never = -std::numeric_limits<float>::infinity();
  const TokenComparison token = compare({0, 0, never}, {0, 0, never}, 0);
  EXPECT_EQ(token.kl, 0);
  EXPECT_NEAR(token.loss, std::log(2), 1e-15);
}

TEST(Comparison, OfAModelWithItselfIsNeutral) {
  Comparison comparison;
  for (const double loss : {1.0, 2.5, 0.25})
    comparison.add({.base_loss = loss, .loss = loss, .kl = 0, .delta_p = 0, .same_top = true});
  EXPECT_EQ(comparison.n_tokens(), 3);
  EXPECT_EQ(comparison.value(metric("ppl")), comparison.value(metric("ppl_base")));
  EXPECT_EQ(comparison.value(metric("ppl_ratio")), 1);
  EXPECT_EQ(comparison.error(metric("ppl_ratio")), 0);
  EXPECT_EQ(comparison.value(metric("kl_mean")), 0);
  EXPECT_EQ(comparison.value(metric("kl_max")), 0);
  EXPECT_EQ(comparison.value(metric("delta_p_rms")), 0);
  EXPECT_EQ(comparison.error(metric("delta_p_rms")), 0);
  EXPECT_EQ(comparison.value(metric("top1_agreement")), 1);
}

TEST(Comparison, ErrorsOfTheRatioAreThoseOfPairs) {
  // Losses spread by nats, their differences by hundredths.
  const std::array<double, 4> losses = {1, 5, 2, 4}, differences = {0.01, 0.03, -0.02, 0.02};
  Comparison comparison;
  for (size_t i = 0; i < losses.size(); ++i)
    comparison.add({.base_loss = losses[i],
                    .loss = losses[i] + differences[i],
                    .kl = 0.1,
                    .delta_p = differences[i],
                    .same_top = i != 0});
  // Mean 0.01; squares about it 0, 4, 9 and 1 in 1e-4, together 14.
  const double error = std::sqrt(14e-4 / 3 / 4);
  EXPECT_NEAR(comparison.value(metric("log_ppl_ratio")), 0.01, 1e-15);
  EXPECT_NEAR(comparison.value(metric("ppl_ratio")), std::exp(0.01), 1e-14);
  EXPECT_NEAR(comparison.error(metric("ppl_ratio")), std::exp(0.01) * error, 1e-14);
  EXPECT_NEAR(comparison.value(metric("ppl_base")), std::exp(3), 1e-13);
  EXPECT_NEAR(comparison.value(metric("ppl")) / comparison.value(metric("ppl_base")),
              comparison.value(metric("ppl_ratio")), 1e-14);
  // Squares 1, 9, 4 and 4 in 1e-4, mean 4.5.
  EXPECT_NEAR(comparison.value(metric("delta_p_mean")), 0.01, 1e-15);
  EXPECT_NEAR(comparison.value(metric("delta_p_rms")), std::sqrt(4.5e-4), 1e-15);
  const double square_error = std::sqrt((3.5 * 3.5 + 4.5 * 4.5 + 2 * 0.5 * 0.5) * 1e-8 / 3 / 4);
  EXPECT_NEAR(comparison.error(metric("delta_p_rms")), square_error / (2 * std::sqrt(4.5e-4)),
              1e-15);
  // Three of four: sqrt(p (1 - p) / (n - 1)).
  EXPECT_NEAR(comparison.value(metric("top1_agreement")), 0.75, 1e-15);
  EXPECT_NEAR(comparison.error(metric("top1_agreement")), std::sqrt(0.75 * 0.25 / 3), 1e-15);
}

}  // namespace
}  // namespace sluice::impl::test
