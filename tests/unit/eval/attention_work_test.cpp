// Counts of attention's work against ones made by hand.

#include "eval/compare/attention_work.h"

#include <gtest/gtest.h>

namespace sluice::impl::test {
namespace {

class GivenSets : public Selector {
 public:
  GivenSets(SelectRule rule, std::vector<TokenSet> sets, int64_t products)
      : Selector({.rule = rule, .taus = {}}) {
    for (const TokenSet& set : sets) spec_.taus.push_back(set.tau);
    sets_ = std::move(sets);
    products_ = products;
  }
  void extend(const SelectArgs&) override {}
  void reset() override {}
  int64_t bytes() const override { return 0; }
};

// Eight tokens in four clusters: a sink, and representatives 1, 3 and 6.
TokenSet eight_tokens(double tau) {
  constexpr auto kRed = TokenStatus::kRedundant, kRep = TokenStatus::kRepresentative;
  return {.tau = tau,
          .status = {TokenStatus::kExempt, kRep, kRed, kRep, kRed, kRed, kRep, kRed},
          .owner = {0, 1, 1, 3, 1, 3, 6, 6},
          .cluster = {0, 1, 1, 2, 1, 2, 3, 3},
          .cosine = {},
          .n_clusters = 4};
}

LayerPlan plan_of(AttentionMode mode, const std::vector<HeadKind>& kinds) {
  LayerPlan plan;
  plan.mode = mode;
  plan.window = plan.block = 2;
  for (const HeadKind kind : kinds) plan.heads.push_back({.kind = kind, .tau = 0.5});
  return plan;
}

constexpr int64_t kTokens = 8;
constexpr double kDenseKeys = 36;  // 1 + 2 + … + 8

TEST(AttentionWork, OfDenseLayersIsAllThereIs) {
  AttentionWork work;
  work.add_layer(
      {.plan = nullptr, .selector = nullptr, .above = nullptr, .n_kv_heads = 2, .n_tokens = 8});
  EXPECT_EQ(work.keys_read_fraction(), 1);
  EXPECT_EQ(work.clusters_fraction(), 1);
  EXPECT_EQ(work.selection_products(), 0);
  EXPECT_EQ(work.selection_products_paper(), 0);
}

// All 64 pairs; four clusters among themselves; eight queries over four clusters.
TEST(AttentionWork, OfAnEncoderIsOverAllPairs) {
  const GivenSets selector(SelectRule::kGreedy, {eight_tokens(0.5)}, 0);
  for (const auto& [mode, keys] :
       {std::pair(AttentionMode::kCopy, 16.0), {AttentionMode::kKeys, 32}}) {
    const LayerPlan plan = plan_of(mode, {HeadKind::kClusters});
    AttentionWork work;
    work.add_layer({.plan = &plan,
                    .selector = &selector,
                    .n_kv_heads = 1,
                    .n_tokens = 8,
                    .window = 0,
                    .causal = false});
    EXPECT_EQ(work.keys_read_fraction(), keys / 64);
  }
}

TEST(AttentionWork, OfALayerThatSlidesIsWhatItsWindowHolds) {
  const GivenSets selector(SelectRule::kGreedy, {eight_tokens(0.5)}, 0);
  const LayerPlan plan = plan_of(AttentionMode::kCopy, {HeadKind::kClusters});
  AttentionWork work;
  work.add_layer(
      {.plan = nullptr, .selector = nullptr, .n_kv_heads = 1, .n_tokens = 8, .window = 3});
  EXPECT_EQ(work.keys_read_fraction(), 1);
  work.add_layer({.plan = &plan, .selector = &selector, .n_kv_heads = 1, .n_tokens = 8});
  const double sliding = 1 + 2 + 6 * 3, copied = 1 + 2 + 3 + 4;  // of four clusters
  EXPECT_DOUBLE_EQ(work.keys_read_fraction(), (sliding + copied) / (sliding + kDenseKeys));
  AttentionWork wide;
  wide.add_layer(
      {.plan = nullptr, .selector = nullptr, .n_kv_heads = 1, .n_tokens = 8, .window = 9});
  wide.add_layer({.plan = &plan, .selector = &selector, .n_kv_heads = 1, .n_tokens = 8});
  EXPECT_DOUBLE_EQ(wide.keys_read_fraction(), (kDenseKeys + copied) / (2 * kDenseKeys));
}

TEST(AttentionWork, CountsKeysAndClustersHeadByHead) {
  const GivenSets selector(SelectRule::kGreedy, {eight_tokens(0.5)}, 0);
  const LayerPlan plan =
      plan_of(AttentionMode::kKeys, {HeadKind::kClusters, HeadKind::kWindow, HeadKind::kDense});
  AttentionWork work;
  work.add_layer({.plan = &plan,
                  .selector = &selector,
                  .above = nullptr,
                  .n_kv_heads = 3,
                  .n_tokens = kTokens});
  // F is 0 for the first four queries, 2 for the next two, 4 for the last two. Far keys: clusters 0
  // and 1, then 0, 1 and 2; of the window head, the sink.
  const double clusters = 1 + 2 + 3 + 4 + (2 + 3) + (2 + 4) + (3 + 3) + (3 + 4);
  const double window = 1 + 2 + 3 + 4 + (1 + 3) + (1 + 4) + (1 + 3) + (1 + 4);
  EXPECT_DOUBLE_EQ(work.keys_read_fraction(), (clusters + window + kDenseKeys) / (3 * kDenseKeys));
  EXPECT_DOUBLE_EQ(work.clusters_fraction(), (4 + 1 + 8) / 24.0);
}

TEST(AttentionWork, CopyScoresAmongRepresentativesAlone) {
  const GivenSets selector(SelectRule::kGreedy, {eight_tokens(0.5)}, 0);
  const LayerPlan plan = plan_of(AttentionMode::kCopy, {HeadKind::kClusters});
  AttentionWork work;
  work.add_layer({.plan = &plan,
                  .selector = &selector,
                  .above = nullptr,
                  .n_kv_heads = 1,
                  .n_tokens = kTokens});
  EXPECT_DOUBLE_EQ(work.keys_read_fraction(), 10 / kDenseKeys);
  EXPECT_DOUBLE_EQ(work.clusters_fraction(), 0.5);
}

TEST(AttentionWork, CountsProductsAsComputedAndAsThePaperDoes) {
  const GivenSets first(SelectRule::kIndependent, {eight_tokens(0.5)}, 28);
  const GivenSets second(SelectRule::kCascadeCausal, {eight_tokens(0.5)}, 11);
  const LayerPlan plan = plan_of(AttentionMode::kKeys, {HeadKind::kClusters});
  const auto layer = [&](const Selector* selector, const Selector* above) {
    return LayerWork{
        .plan = &plan, .selector = selector, .above = above, .n_kv_heads = 1, .n_tokens = kTokens};
  };
  AttentionWork work;
  work.add_layer(layer(&first, nullptr));
  EXPECT_DOUBLE_EQ(work.selection_products(), 28 / 64.0);
  EXPECT_DOUBLE_EQ(work.selection_products_paper(), 1);
  work.add_layer(layer(&second, &first));  // inherits four
  EXPECT_DOUBLE_EQ(work.selection_products(), (28 + 11) / 128.0);
  EXPECT_DOUBLE_EQ(work.selection_products_paper(), (64 + 8 * 4) / 128.0);
  work.add_layer(layer(&second, &second));  // reuses: nothing is compared
  EXPECT_DOUBLE_EQ(work.selection_products(), (28 + 11) / 128.0);
}

}  // namespace
}  // namespace sluice::impl::test
