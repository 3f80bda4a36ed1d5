// Plans as results.json has them.

#include "plan/plan_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace sluice::impl {
namespace {

using nlohmann::json;

TEST(DescribePlan, SaysWhatEveryHeadDoes) {
  AttentionPlan plan;
  plan.layers.resize(3);
  LayerPlan& keys = plan.layers[1];
  keys.mode = AttentionMode::kKeys;
  keys.window = 64;
  keys.block = 32;
  keys.heads = {{.kind = HeadKind::kClusters, .tau = 0.25, .far = FarKey::kValues},
                {.kind = HeadKind::kWindow},
                {.kind = HeadKind::kDense}};
  LayerPlan& copy = plan.layers[2];
  copy.mode = AttentionMode::kCopy;
  copy.reuse = true;
  copy.heads.assign(3, {.kind = HeadKind::kClusters, .tau = 0.25});

  const json dense_head = {{"kind", "dense"}}, copy_head = {{"kind", "clusters"}, {"tau", 0.25}};
  const json expected = {{{"layer", 0},
                          {"mode", "dense"},
                          {"reuse", false},
                          {"joint", false},
                          {"window", nullptr},
                          {"block", nullptr},
                          {"heads", {dense_head, dense_head, dense_head}}},
                         {{"layer", 1},
                          {"mode", "keys"},
                          {"reuse", false},
                          {"joint", false},
                          {"window", 64},
                          {"block", 32},
                          {"heads",
                           {{{"kind", "clusters"}, {"tau", 0.25}, {"far", "values"}},
                            {{"kind", "window"}},
                            dense_head}}},
                         {{"layer", 2},
                          {"mode", "copy"},
                          {"reuse", true},
                          {"joint", false},
                          {"window", nullptr},
                          {"block", nullptr},
                          {"heads", {copy_head, copy_head, copy_head}}}};
  EXPECT_EQ(describe_plan(plan, 3), json({{"layers", expected}}));
}

TEST(DescribePlan, OfAUniformChoiceStartsAtItsLayer) {
  UniformAttention choice;
  choice.mode = AttentionMode::kKeys;
  choice.from_layer = 2;
  const PlanShape shape{.n_layers = 4, .n_kv_heads = 2, .causal = true, .context = 1024};
  const json layers = describe_plan(uniform_plan(choice, shape), 2).at("layers");
  ASSERT_EQ(layers.size(), 4u);
  for (size_t l = 0; l < 4; ++l) {
    EXPECT_EQ(layers[l].at("mode"), l < 2 ? "dense" : "keys");
    EXPECT_EQ(layers[l].at("heads").size(), 2u);
  }
}

}  // namespace
}  // namespace sluice::impl
