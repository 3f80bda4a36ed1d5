// Spectral norms and attention errors against numbers worked out by hand.

#include "eval/analyze/profile_attention.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice::impl::test {
namespace {

TEST(SpectralNorm, OfADiagonalMatrixIsItsLargestEntry) {
  const std::vector<float> matrix = {3, 0, 0, 0, -5, 0};  // (2, 3)
  // Power iteration stops at 1e-6 of the value, from below.
  EXPECT_NEAR(spectral_norm(matrix, 3), 5, 5e-6);
}

TEST(SpectralNorm, OfARankOneMatrixIsTheProductOfLengths) {
  std::vector<float> matrix;
  for (const float row : {1.0f, 2.0f, 2.0f})
    for (const float column : {3.0f, 4.0f}) matrix.push_back(row * column);
  EXPECT_NEAR(spectral_norm(matrix, 2), 15, 15e-6);
  EXPECT_EQ(spectral_norm(std::vector<float>(6), 2), 0);
}

TEST(MeasureAttention, ErrsOverTokensOutsideTheSetAndBoundsTheCoveredOnes) {
  // Two heads of one element; token 1 belongs to token 0, token 2 to nobody, nearest token 0.
  const AttentionOutputs outputs{.n_tokens = 3,
                                 .n_heads = 2,
                                 .head_dim = 1,
                                 .attended = {1, 2, 4, 2, 2, 10},
                                 .input_norms = {1, 2, 3},
                                 .bound_per_input = {1, 10}};
  TokenSet set;
  set.tau = 0.5;
  set.status = {TokenStatus::kRepresentative, TokenStatus::kRedundant, TokenStatus::kUncovered};
  set.owner = {0, 0, 0};
  set.cosine = {1, 0.875f, 0.5f};
  SetFigures figures;
  measure_attention(outputs, {0, 2}, set, true, figures);
  EXPECT_EQ(figures.n_outside.mean(), 2);
  EXPECT_EQ(figures.attention_error_mean.mean(), 3);  // 3 and 0, 1 and 8
  EXPECT_EQ(figures.attention_error_max.mean(), 8);
  EXPECT_DOUBLE_EQ(figures.attention_error_relative.mean(), (0.75 + 0 + 0.5 + 0.8) / 4);
  // Of token 1 alone from here on.
  EXPECT_EQ(figures.n_covered.mean(), 1);
  EXPECT_EQ(figures.bound_tau.mean(), (0.5 * 2 + 0.5 * 20) / 2);  // distance 0.5 as well
  EXPECT_EQ(figures.bound_distance.mean(), figures.bound_tau.mean());
  EXPECT_EQ(figures.violations_tau.mean(), 0.5);  // 3 > 1, 0 < 10
  // Of all tokens: 3^2 + 1^2 + 8^2 of 1 + 4 + 16 + 4 + 4 + 100.
  EXPECT_DOUBLE_EQ(figures.copy_error.mean(), std::sqrt(74.0 / 129));

  SetFigures one_head;
  measure_attention(outputs, {1, 1}, set, false, one_head);
  EXPECT_EQ(one_head.attention_error_mean.mean(), 4);  // 0 and 8
  EXPECT_EQ(one_head.bound_tau.count(), 0);

  set.status[1] = TokenStatus::kUncovered;  // the proposition speaks of nobody
  SetFigures uncovered;
  measure_attention(outputs, {0, 2}, set, true, uncovered);
  EXPECT_EQ(uncovered.n_outside.mean(), 2);
  EXPECT_EQ(uncovered.n_covered.mean(), 0);
  EXPECT_EQ(uncovered.attention_error_mean.mean(), 3);
  EXPECT_EQ(uncovered.bound_tau.count(), 0);
}

TEST(MeasureAttention, WithoutOwnersThereIsNoError) {
  const AttentionOutputs outputs{.n_tokens = 2,
                                 .n_heads = 1,
                                 .head_dim = 1,
                                 .attended = {1, 2},
                                 .input_norms = {1, 1},
                                 .bound_per_input = {1}};
  TokenSet set;  // nobody stands before the uncovered token
  set.status = {TokenStatus::kUncovered, TokenStatus::kRepresentative};
  set.owner = {0, 1};
  set.cosine = {-1, 1};
  SetFigures figures;
  measure_attention(outputs, {0, 1}, set, true, figures);
  EXPECT_EQ(figures.attention_error_mean.count(), 0);
  EXPECT_EQ(figures.n_outside.mean(), 0);
  EXPECT_EQ(figures.copy_error.mean(), 0);
}

}  // namespace
}  // namespace sluice::impl::test
