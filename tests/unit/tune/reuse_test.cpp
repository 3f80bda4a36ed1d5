// Which layers may take the sets of the layer before, and what their heads then do.

#include "tune/reuse.h"

#include <gtest/gtest.h>

namespace sluice::impl::test {
namespace {

const PlanShape kShape{
    .n_layers = 6, .n_kv_heads = 2, .causal = true, .windows = {}, .context = 512};

LayerPlan layer_of(HeadPlan first, HeadPlan second) {
  UniformAttention keys;
  keys.mode = AttentionMode::kKeys;
  LayerPlan layer = layer_plan(keys, kShape);
  layer.heads = {first, second};
  return layer;
}

HeadPlan by(double tau) { return {.kind = HeadKind::kClusters, .tau = tau}; }
const HeadPlan kWindowOnly{.kind = HeadKind::kWindow}, kExact{.kind = HeadKind::kDense};

// Dense; sets by 0.3 and 0.7; dense; windows alone; by 0.4; by 0.45.
AttentionPlan sample() {
  AttentionPlan plan;
  plan.layers = {LayerPlan{},
                 layer_of(by(0.3), by(0.7)),
                 LayerPlan{},
                 layer_of(kWindowOnly, kExact),
                 layer_of(by(0.4), kExact),
                 layer_of(by(0.45), by(0.45))};
  plan.layers[3].reuse = true;
  return plan;
}

TEST(Reuse, TakesSetsThatALayerBeforeChose) {
  EXPECT_EQ(layers_that_may_reuse(sample()), (std::vector<int64_t>{4, 5}));
  AttentionPlan alone = sample();
  alone.layers[1] = LayerPlan{};
  alone.layers[3].reuse = false;  // has no sets to hand on
  EXPECT_EQ(layers_that_may_reuse(alone), (std::vector<int64_t>{5}));
}

TEST(Reuse, HeadsTakeTheNearestTauThereIs) {
  const std::vector<int64_t> both = {4, 5}, last = {5};
  const AttentionPlan all = with_reuse(sample(), both);
  EXPECT_TRUE(all.layers[4].reuse && all.layers[5].reuse);
  EXPECT_EQ(all.layers[4].heads[0].tau, 0.3);
  EXPECT_EQ(all.layers[4].heads[1], kExact);
  EXPECT_EQ(all.layers[5].heads[0].tau, 0.3) << "the sets of layer 1, layer 4 chose none";
  EXPECT_NO_THROW(check_plan(all, kShape));
  const AttentionPlan one = with_reuse(sample(), last);
  EXPECT_EQ(one.layers[4], sample().layers[4]);
  EXPECT_EQ(one.layers[5].heads[0].tau, 0.4);
  EXPECT_NO_THROW(check_plan(one, kShape));
}

TEST(Reuse, LayersThatMayNotAreLeftAlone) {
  const std::vector<int64_t> others = {0, 1, 2, 3};
  EXPECT_EQ(with_reuse(sample(), others), sample());
}

}  // namespace
}  // namespace sluice::impl::test
