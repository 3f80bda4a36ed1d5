// How keys and values are kept, as a layer's plan says it.

#include <gtest/gtest.h>

#include "plan/plan.h"
#include "plan/plan_json.h"
#include "unit/plan/sample_plan.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

using nlohmann::json;

const PlanShape kTwoLayers = {.n_layers = 2, .n_kv_heads = 1, .causal = true, .context = 1024};

UniformAttention with_int8(AttentionMode mode) {
  UniformAttention choice;
  choice.mode = mode;
  choice.cache = CacheKind::kInt8;
  return choice;
}

TEST(CachePlan, KindsComeBackByName) {
  for (const CacheKind kind : {CacheKind::kExact, CacheKind::kInt8})
    EXPECT_EQ(cache_of(cache_name(kind)), kind);
  EXPECT_FALSE(cache_of("int4"));
}

TEST(CachePlan, DenseLayersWithInt8AreDenseAndNotExact) {
  const AttentionPlan exact = uniform_plan(UniformAttention{}, kTwoLayers);
  const AttentionPlan plan = uniform_plan(with_int8(AttentionMode::kDense), kTwoLayers);
  EXPECT_TRUE(exact.all_dense() && exact.all_exact());
  EXPECT_TRUE(plan.all_dense() && plan.keeps_every_key());
  EXPECT_FALSE(plan.all_exact());
  for (const LayerPlan& layer : plan.layers) EXPECT_EQ(layer.cache, CacheKind::kInt8);
  EXPECT_NO_THROW(check_plan(plan, kTwoLayers));
  EXPECT_TRUE(UniformChoice{}.all_exact());
  EXPECT_FALSE(UniformChoice{.attention = with_int8(AttentionMode::kDense)}.all_exact());
}

TEST(CachePlan, LayersThatStayDenseHaveTheCacheOfTheOthers) {
  UniformAttention choice = with_int8(AttentionMode::kRefine);
  choice.from_layer = 1;
  EXPECT_EQ(uniform_plan(choice, kTwoLayers).layers[0].mode, AttentionMode::kDense);
  EXPECT_EQ(uniform_plan(choice, kTwoLayers).layers[0].cache, CacheKind::kInt8);
  choice.from_layer = 0;
  PlanShape windowed = kTwoLayers;
  windowed.windows = {0, 64};
  const AttentionPlan plan = uniform_plan(choice, windowed);
  EXPECT_EQ(plan.layers[0].mode, AttentionMode::kRefine);
  EXPECT_EQ(plan.layers[1].mode, AttentionMode::kDense);
  EXPECT_EQ(plan.layers[1].cache, CacheKind::kInt8);
  EXPECT_EQ(plan, fitted(uniform_plan(choice, kTwoLayers), windowed));
}

TEST(CachePlan, OtherModesHaveAnExactCacheAlone) {
  for (const AttentionMode mode :
       {AttentionMode::kKeys, AttentionMode::kCopy, AttentionMode::kPaper})
    expect_error([&] { uniform_plan(with_int8(mode), kTwoLayers); },
                 {std::string(mode_name(mode)), "no cache int8"});
}

TEST(CachePlan, ComesBackFromItsFile) {
  for (const AttentionMode mode : {AttentionMode::kDense, AttentionMode::kRefine}) {
    PlanFile file = dense_plan();
    file.plan.attention = uniform_plan(with_int8(mode), kTwoLayers);
    file.plan.attention.layers[0].cache = CacheKind::kExact;
    const json written = plan_file_json(file);
    EXPECT_EQ(written.at("layers")[1].at("cache"), "int8");
    EXPECT_EQ(parsed(written), file) << mode_name(mode);
  }
  json file = plan_file_json(dense_plan());
  file["layers"][1]["cache"] = "exact";
  EXPECT_EQ(parsed(file), dense_plan());
}

TEST(CachePlan, APlanThatOnlyRoundsTheCacheIsFollowed) {
  PlanFile file = dense_plan();
  EXPECT_EQ(why_dense(file, 1, 1), "is dense");
  file.plan.attention = uniform_plan(with_int8(AttentionMode::kDense), kTwoLayers);
  EXPECT_NE(why_dense(file, 1, 1), "is dense");
}

TEST(CachePlan, IsDescribed) {
  EXPECT_EQ(describe_attention(with_int8(AttentionMode::kDense), kTwoLayers),
            json({{"attention", "dense"}, {"cache", "int8"}}));
  EXPECT_FALSE(describe_attention(UniformAttention{}, kTwoLayers).contains("cache"));
  EXPECT_EQ(describe_attention(with_int8(AttentionMode::kRefine), kTwoLayers).at("cache"), "int8");
}

}  // namespace
}  // namespace sluice::impl::test
