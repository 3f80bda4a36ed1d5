// Layers that choose their tau from the first tokens: the same one however the tokens come, for
// each sequence its own. docs/algorithm.md, section 6.

#include "select/auto_tau.h"

#include <gtest/gtest.h>

#include <cmath>

#include "layer/layer_attention.h"
#include "parity/backends.h"
#include "parity/compare.h"

namespace sluice::impl::test {
namespace {

constexpr int64_t kTokens = 300, kWidth = 32;

std::vector<float> unit_direction(uint32_t seed) {
  auto row = random_values(kWidth, seed);
  double squares = 0;
  for (const float x : row) squares += double{x} * x;
  for (float& x : row) x = static_cast<float>(x / std::sqrt(squares));
  return row;
}

// Every second row has this cosine to the one before it; others are far apart (of random unit rows
// in 32 dimensions the largest cosine of 45,000 pairs is about 0.75).
std::vector<float> rows_in_pairs(double cosine) {
  std::vector<float> rows;
  for (uint32_t t = 0; t < kTokens; ++t) {
    auto row = unit_direction(1000 + t);
    if (t % 2 == 1) {
      const float* before = rows.data() + (t - 1) * kWidth;
      double along = 0, squares = 0;
      for (size_t i = 0; i < kWidth; ++i) along += double{row[i]} * before[i];
      for (size_t i = 0; i < kWidth; ++i) row[i] -= static_cast<float>(along * before[i]);
      for (const float x : row) squares += double{x} * x;
      const double aside = std::sqrt((1 - cosine * cosine) / squares);
      for (size_t i = 0; i < kWidth; ++i)
        row[i] = static_cast<float>(cosine * before[i] + aside * row[i]);
    }
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

LayerPlan plan_of(SelectRule rule) {
  LayerPlan plan;
  plan.mode = AttentionMode::kKeys;
  plan.rule = rule;
  plan.outlier_ratio = 0;
  plan.tau_auto = true;
  plan.heads = {{HeadKind::kClusters}};
  return plan;
}

constexpr int64_t kCapacity = 4096;
const AttentionShape kShape{.d_model = kWidth,
                            .n_heads = 1,
                            .n_kv_heads = 1,
                            .head_dim = kWidth,
                            .causal = true,
                            .scale = 0.25f};

class AutoTauOf : public testing::TestWithParam<Setup> {
 protected:
  DeviceTensor tensor(const std::vector<float>& rows) {
    return {*backend, DType::kF32, {kTokens, kWidth}, rows};
  }
  // Feeds a sequence to two layers, n tokens at a time.
  void feed(LayerAttention& above, LayerAttention& below, int64_t batch, const DeviceTensor& first,
            const DeviceTensor& second, int64_t n) {
    for (int64_t at = 0; at < kTokens; at += n) {
      const int64_t more = std::min(n, kTokens - at);
      above.select(batch, {first.view().rows_from(at, more), first.view().rows_from(at, more)});
      below.select(batch, {second.view().rows_from(at, more), second.view().rows_from(at, more)});
      EXPECT_EQ(below.has_tau(batch), at + more >= kAutoTokens);
    }
  }

  const std::unique_ptr<Backend> backend = GetParam().backend();
  // At 0.2, 0.3 and 0.4 pairs merge from 0.96, 0.91 and 0.84 on.
  const DeviceTensor apart = tensor(rows_in_pairs(0)), near = tensor(rows_in_pairs(0.93)),
                     nearer = tensor(rows_in_pairs(0.98));
};

TEST_P(AutoTauOf, FollowsTheTurnoverHoweverTokensCome) {
  struct Case {
    const DeviceTensor& second;
    double tau;
  };
  for (const SelectRule rule : {SelectRule::kCascadeCover, SelectRule::kGreedy})
    for (const Case& c : {Case{apart, 0.4}, Case{near, 0.2}, Case{nearer, 0}}) {
      std::vector<TokenSet> whole;
      for (const int64_t n : {kTokens, int64_t{256}, int64_t{255}, int64_t{100}, int64_t{1}}) {
        SCOPED_TRACE(n);
        LayerAttention above(*backend, plan_of(rule), kShape, 1, kCapacity, nullptr);
        LayerAttention below(*backend, plan_of(rule), kShape, 1, kCapacity, &above);
        feed(above, below, 0, apart, c.second, n);
        const std::vector<TokenSet> sets = below.decided(0).sets();
        ASSERT_EQ(sets.size(), 1u);
        EXPECT_EQ(sets[0].tau, c.tau);
        EXPECT_EQ(sets[0].n_tokens(), kTokens);
        EXPECT_EQ(above.decided(0).sets()[0].tau, 0.2);
        if (whole.empty()) whole = sets;
        EXPECT_EQ(sets[0].status, whole[0].status);
        EXPECT_EQ(sets[0].owner, whole[0].owner);
      }
    }
}

TEST_P(AutoTauOf, IsEachSequencesOwnAndForgottenWithIt) {
  LayerAttention above(*backend, plan_of(SelectRule::kCascadeCover), kShape, 2, kCapacity, nullptr);
  LayerAttention below(*backend, plan_of(SelectRule::kCascadeCover), kShape, 2, kCapacity, &above);
  feed(above, below, 0, apart, apart, 100);
  feed(above, below, 1, apart, nearer, 100);
  EXPECT_EQ(below.decided(0).sets()[0].tau, 0.4);
  EXPECT_EQ(below.decided(1).sets()[0].tau, 0);
  above.reset();
  below.reset();
  EXPECT_FALSE(below.has_tau(0));
  EXPECT_EQ(below.bytes().total(), 0);
  feed(above, below, 0, apart, near, kTokens);
  EXPECT_EQ(below.decided(0).sets()[0].tau, 0.2);
}

TEST_P(AutoTauOf, TokensAfterTheFirstChangeNothing) {
  auto changed = rows_in_pairs(0);
  const auto other = rows_in_pairs(0.98);
  std::copy(other.begin() + kAutoTokens * kWidth, other.end(),
            changed.begin() + kAutoTokens * kWidth);
  const DeviceTensor second = tensor(changed);
  LayerAttention above(*backend, plan_of(SelectRule::kCascadeCover), kShape, 1, kCapacity, nullptr);
  LayerAttention below(*backend, plan_of(SelectRule::kCascadeCover), kShape, 1, kCapacity, &above);
  feed(above, below, 0, apart, second, kTokens);
  EXPECT_EQ(below.decided(0).sets()[0].tau, 0.4);
}

TEST_P(AutoTauOf, SetsBeforeTheChoiceAreABrokenPromise) {
  LayerAttention layer(*backend, plan_of(SelectRule::kGreedy), kShape, 1, kCapacity, nullptr);
  layer.select(0, {apart.view().rows_from(0, 255), apart.view().rows_from(0, 255)});
  EXPECT_EQ(layer.sets(0)[0].n_tokens(), 0);
  EXPECT_THROW(layer.decided(0), InternalError);
}

INSTANTIATE_TEST_SUITE_P(All, AutoTauOf,
                         testing::Values(Setup{"reference", DType::kF32, make_reference_backend},
                                         Setup{"cpu", DType::kF32, make_cpu_backend}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace sluice::impl::test
