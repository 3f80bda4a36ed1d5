// Baselines in plans: names, what they take their share of, and what is refused.

#include "plan/baseline_plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "plan/plan_json.h"
#include "unit/plan/sample_plan.h"

namespace sluice::impl::test {
namespace {

UniformAttention quest(double keep) {
  UniformAttention choice;
  choice.mode = AttentionMode::kBaseline;
  choice.baseline = {.kind = BaselineKind::kQuest, .keep = keep};
  return choice;
}
const PlanShape kHundredTokens{.n_layers = 2, .n_kv_heads = 3, .causal = true, .context = 100};

TEST(BaselinePlan, NamesComeBack) {
  using enum BaselineKind;
  for (const BaselineKind kind : {kWindow, kQuest, kPooled, kOracle})
    EXPECT_EQ(baseline_of(baseline_name(kind)), kind);
  EXPECT_FALSE(baseline_of("quest"));
  EXPECT_FALSE(baseline_of("baseline"));
}

TEST(BaselinePlan, SharesAreOfTheContextInUse) {
  EXPECT_EQ(baseline_window(0.1, 8192), 819);
  EXPECT_EQ(baseline_window(1e-9, 8192), 1);
  EXPECT_EQ(baseline_pages(0.1, 8192), 51);
  EXPECT_EQ(baseline_pages(1, 8191), 512);
  EXPECT_EQ(baseline_pages(1e-9, 8192), 2);
  const AttentionPlan plan = uniform_plan(quest(0.5), kHundredTokens);
  EXPECT_EQ(plan.layers[1].baseline, (BaselinePlan{BaselineKind::kQuest, 0.5, 100}));
  EXPECT_EQ(at_length(plan, 30).layers[1].baseline, (BaselinePlan{BaselineKind::kQuest, 0.5, 30}));
  EXPECT_FALSE(plan.layers[1].selects());
  EXPECT_FALSE(plan.all_dense());
}

TEST(BaselinePlan, RefusesEncodersAndSharesOfNothing) {
  PlanShape encoder = kHundredTokens;
  encoder.causal = false;
  EXPECT_THROW(uniform_plan(quest(0.5), encoder), Error);
  for (const double keep : {0.0, -0.1, 1.01, std::nan("")})
    EXPECT_THROW(uniform_plan(quest(keep), kHundredTokens), Error) << keep;
  PlanShape sliding = kHundredTokens;
  sliding.windows = {0, 50};
  EXPECT_EQ(uniform_plan(quest(0.5), sliding).layers[1], LayerPlan{});
}

TEST(BaselinePlan, SaysWhatItIsInResults) {
  const auto settings = describe_attention(quest(0.5), kHundredTokens);
  EXPECT_EQ(settings.at("attention"), "baseline:quest");
  EXPECT_EQ(settings.at("keep"), 0.5);
  const auto layer = describe_plan(uniform_plan(quest(0.5), kHundredTokens), 3).at("layers").at(1);
  EXPECT_EQ(layer.at("mode"), "baseline:quest");
  EXPECT_EQ(layer.at("keep"), 0.5);
}

TEST(BaselinePlan, IsNoModeOfAPlanFile) {
  EXPECT_FALSE(mode_of("baseline"));
  for (const char* mode : {"baseline", "baseline:quest"}) {
    auto file = plan_file_json(sample_plan());
    file["layers"][1]["mode"] = mode;
    EXPECT_THROW(parse_plan_file(file.dump(), "plan.json"), Error) << mode;
  }
}

}  // namespace
}  // namespace sluice::impl::test
