// Attention matrices of sets: by hand, against whole matrices in plain loops, and their limits.

#include "eval/analyze/profile_matrices.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace sluice::impl::test {
namespace {

TokenSet set_of(std::vector<int32_t> owners) {
  TokenSet set;
  for (size_t t = 0; t < owners.size(); ++t)
    set.status.push_back(owners[t] == static_cast<int32_t>(t) ? TokenStatus::kRepresentative
                                                              : TokenStatus::kRedundant);
  set.owner = std::move(owners);
  return set;
}

// Three tokens, one head of one element; q . k are 0, log 2 and log 3 for the keys 0, 1, 2.
AttentionScores three_tokens(bool causal) {
  return {.n_tokens = 3,
          .n_heads = 1,
          .n_kv_heads = 1,
          .head_dim = 1,
          .causal = causal,
          .window = 0,
          .scale = 1,
          .cap = 0,
          .queries = {1, 1, 1},
          .keys = {0, std::log(2.0f), std::log(3.0f)}};
}

void expect_row(const std::vector<double>& row, const std::vector<double>& expected) {
  ASSERT_EQ(row.size(), expected.size());
  // Keys are float32 logarithms.
  for (size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(row[i], expected[i], 1e-7) << i;
}

TEST(AttentionMatrices, RowsByHand) {
  const AttentionScores causal = three_tokens(true), full = three_tokens(false);
  expect_row(matrix_row(causal, 0, 2, nullptr), {1 / 6.0, 2 / 6.0, 3 / 6.0});
  expect_row(matrix_row(causal, 0, 1, nullptr), {1 / 3.0, 2 / 3.0, 0});
  expect_row(matrix_row(full, 0, 0, nullptr), {1 / 6.0, 2 / 6.0, 3 / 6.0});
  const TokenSet set = set_of({0, 1, 1});  // token 2 copies token 1
  expect_row(matrix_row(causal, 0, 2, &set), {1 / 3.0, 2 / 3.0, 0});
  const TokenSet other = set_of({0, 0, 2});  // token 1 is no member
  expect_row(matrix_row(causal, 0, 2, &other), {1 / 4.0, 0, 3 / 4.0});
  AttentionScores window = causal;
  window.window = 2;
  expect_row(matrix_row(window, 0, 2, nullptr), {0, 2 / 5.0, 3 / 5.0});
  AttentionScores capped = causal;
  capped.cap = 1;
  const double a = std::exp(std::tanh(std::log(2.0)));
  expect_row(matrix_row(capped, 0, 1, nullptr), {1 / (1 + a), a / (1 + a), 0});
}

TEST(AttentionMatrices, DifferencesByHand) {
  // Independent {0, 1}, the other {0, 2}. Rows of the independent one: (1, 0, 0), (1/3, 2/3, 0),
  // (1/3, 2/3, 0); of the other: (1, 0, 0), (1, 0, 0), (1/4, 0, 3/4).
  const std::vector<TokenSet> sets = {set_of({0, 1, 1}), set_of({0, 0, 2})};
  std::vector<SetFigures> figures(2);
  measure_matrices(three_tokens(true), {0, 1}, sets, figures);
  EXPECT_EQ(figures[0].matrix_tv_independent.mean(), 0);
  EXPECT_EQ(figures[0].matrix_frobenius_independent.mean(), 0);
  EXPECT_NEAR(figures[1].matrix_tv_independent.mean(), (0 + 2 / 3.0 + 3 / 4.0) / 3, 1e-7);
  const double squares = 4 / 9.0 + 4 / 9.0 + 1 / 144.0 + 4 / 9.0 + 9 / 16.0;
  EXPECT_NEAR(figures[1].matrix_frobenius_independent.mean(),
              std::sqrt(squares / (1 + 5 / 9.0 + 5 / 9.0)), 1e-7);
  // Dense row 2 is (1, 2, 3) / 6; the others are as the independent set's.
  EXPECT_NEAR(figures[0].matrix_tv_dense.mean(), 0.5 / 3, 1e-7);
}

TEST(AttentionMatrices, EqualWholeMatricesInPlainLoops) {
  constexpr int64_t kT = 2 * kMatrixRows, kHeads = 4, kKvHeads = 2, kWidth = 3;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  AttentionScores scores{.n_tokens = kT,
                         .n_heads = kHeads,
                         .n_kv_heads = kKvHeads,
                         .head_dim = kWidth,
                         .causal = true,
                         .window = 0,
                         .scale = 0.7f,
                         .cap = 0,
                         .queries = {},
                         .keys = {}};
  for (int64_t i = 0; i < kT * kHeads * kWidth; ++i) scores.queries.push_back(normal(random));
  for (int64_t i = 0; i < kT * kKvHeads * kWidth; ++i) scores.keys.push_back(normal(random));
  std::vector<TokenSet> sets(2);
  for (const size_t every : {2, 3}) {
    std::vector<int32_t> owners;
    for (size_t t = 0; t < kT; ++t) owners.push_back(static_cast<int32_t>(t / every * every));
    sets[every - 2] = set_of(owners);
  }
  std::vector<SetFigures> figures(2);
  measure_matrices(scores, {1, 3}, sets, figures);

  const auto weight = [&](const TokenSet& set, size_t head, size_t t, size_t s) {
    const auto q = static_cast<size_t>(set.owner[t]);
    if (s > q || static_cast<size_t>(set.owner[s]) != s) return 0.0;
    double sum = 0;
    for (size_t i = 0; i < kWidth; ++i)
      sum += double{scores.queries[(q * kHeads + head) * kWidth + i]} *
             scores.keys[(s * kKvHeads + head / 2) * kWidth + i];
    return std::exp(double{0.7f} * sum);
  };
  double variation = 0, squares = 0, norm = 0;
  for (size_t head = 1; head < kHeads; ++head)
    for (size_t t = 1; t < kT; t += 2) {  // every second row, up to the last
      double total[2] = {0, 0};
      for (size_t s = 0; s < kT; ++s)
        for (size_t set = 0; set < 2; ++set) total[set] += weight(sets[set], head, t, s);
      for (size_t s = 0; s < kT; ++s) {
        const double base = weight(sets[0], head, t, s) / total[0];
        const double other = weight(sets[1], head, t, s) / total[1];
        variation += std::abs(other - base) / 2;
        squares += (other - base) * (other - base);
        norm += base * base;
      }
    }
  // The same float64 sums in another order.
  EXPECT_NEAR(figures[1].matrix_tv_independent.mean(), variation / (3 * kMatrixRows), 1e-12);
  EXPECT_NEAR(figures[1].matrix_frobenius_independent.mean(), std::sqrt(squares / norm), 1e-12);
}

TEST(AttentionMatrices, AllTokensAreDenseAndStrangersAreApart) {
  const AttentionScores scores = three_tokens(false);
  std::vector<SetFigures> figures(2);
  measure_matrices(scores, {0, 1}, {set_of({0, 1, 2}), set_of({0, 1, 2})}, figures);
  EXPECT_EQ(figures[1].matrix_tv_dense.mean(), 0);
  EXPECT_EQ(figures[1].matrix_frobenius_dense.mean(), 0);
  std::vector<SetFigures> apart(2);
  measure_matrices(scores, {0, 1}, {set_of({0, 0, 0}), set_of({2, 2, 2})}, apart);
  EXPECT_EQ(apart[1].matrix_tv_independent.mean(), 1);
  EXPECT_DOUBLE_EQ(apart[1].matrix_frobenius_independent.mean(), std::sqrt(2.0));
}

}  // namespace
}  // namespace sluice::impl::test
