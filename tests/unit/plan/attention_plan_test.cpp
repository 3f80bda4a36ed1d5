// Plans: the defaults of docs/algorithm.md, section 1, the taus of a layer, and every plan that is
// refused because the model could not follow it as it is written.

#include "plan/attention_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

constexpr AttentionMode kModes[] = {AttentionMode::kPaper, AttentionMode::kCopy,
                                    AttentionMode::kKeys};
constexpr SelectRule kRules[] = {SelectRule::kIndependent, SelectRule::kGreedy,
                                 SelectRule::kCascadePaper, SelectRule::kCascadeCausal,
                                 SelectRule::kCascadeCover};

PlanShape causal_shape() {
  return {.n_layers = 3, .n_kv_heads = 2, .causal = true, .windows = {}, .context = 1000};
}
PlanShape encoder_shape() {
  PlanShape shape = causal_shape();
  shape.causal = false;
  return shape;
}

UniformAttention choice_of(AttentionMode mode) {
  UniformAttention choice;
  choice.mode = mode;
  return choice;
}
AttentionPlan plan_of(AttentionMode mode, const PlanShape& shape = causal_shape()) {
  return uniform_plan(choice_of(mode), shape);
}

// `change` makes a plan to be refused of the layers of a sound one.
template <typename F>
void expect_refused(const F& change, const std::vector<std::string>& fragments,
                    AttentionMode mode = AttentionMode::kKeys,
                    const PlanShape& shape = causal_shape()) {
  AttentionPlan plan = plan_of(mode, shape);
  change(plan.layers);
  expect_error([&] { check_plan(plan, shape); }, fragments);
}
using Layers = std::vector<LayerPlan>;

TEST(AttentionPlanNames, AreFoundByTheirNamesAlone) {
  for (const AttentionMode mode :
       {AttentionMode::kDense, AttentionMode::kPaper, AttentionMode::kCopy, AttentionMode::kKeys})
    EXPECT_EQ(mode_of(mode_name(mode)), mode);
  for (const SelectSpace space : {SelectSpace::kResidual, SelectSpace::kNormed})
    EXPECT_EQ(space_of(space_name(space)), space);
  for (const FarKey far : {FarKey::kCentroid, FarKey::kValues, FarKey::kOwn})
    EXPECT_EQ(far_of(far_name(far)), far);
  EXPECT_FALSE(mode_of("Keys"));
  EXPECT_FALSE(space_of("key"));
  EXPECT_FALSE(far_of(""));
}

TEST(UniformAttention, WithoutARuleThePaperHasItsCascadeAndTheOthersTheCover) {
  for (const AttentionMode mode : kModes)
    EXPECT_EQ(layer_plan(choice_of(mode), causal_shape()).rule, mode == AttentionMode::kPaper
                                                                    ? SelectRule::kCascadePaper
                                                                    : SelectRule::kCascadeCover);
}

TEST(UniformAttention, ThePapersSettingsGoWithItsModeAndItsRules) {
  for (const AttentionMode mode : kModes)
    for (const SelectRule rule : kRules) {
      SCOPED_TRACE(std::string(mode_name(mode)) + " " + std::string(rule_name(rule)));
      UniformAttention choice = choice_of(mode);
      choice.rule = rule;
      const LayerPlan layer = layer_plan(choice, causal_shape());
      const bool paper = mode == AttentionMode::kPaper || rule == SelectRule::kIndependent ||
                         rule == SelectRule::kCascadePaper;
      EXPECT_EQ(layer.mode, mode);
      EXPECT_EQ(layer.rule, rule);
      EXPECT_EQ(layer.space, paper ? SelectSpace::kResidual : SelectSpace::kNormed);
      EXPECT_EQ(layer.sinks, paper ? 0 : 4);
      EXPECT_EQ(layer.outlier_ratio, paper ? 0 : 8);
      EXPECT_EQ(layer.window, 128);
      EXPECT_EQ(layer.block, 128);
      EXPECT_FALSE(layer.reuse);
      ASSERT_EQ(layer.heads.size(), 2u);
      for (const HeadPlan& head : layer.heads) {
        EXPECT_EQ(head.kind, HeadKind::kClusters);
        EXPECT_EQ(head.tau, 0.3);
        EXPECT_EQ(head.far, FarKey::kCentroid);
      }
    }
}

TEST(UniformAttention, WhatIsGivenReplacesTheDefaults) {
  UniformAttention choice = choice_of(AttentionMode::kPaper);
  choice.space = SelectSpace::kNormed;
  choice.sinks = 2;
  choice.outlier_ratio = 5;
  choice.tau = 0.7;
  const LayerPlan layer = layer_plan(choice, causal_shape());
  EXPECT_EQ(layer.space, SelectSpace::kNormed);
  EXPECT_EQ(layer.sinks, 2);
  EXPECT_EQ(layer.outlier_ratio, 5);
  EXPECT_EQ(layer.taus(), std::vector<double>{0.7});
}

TEST(UniformAttention, EncodersHaveNoSinks) {
  for (const AttentionMode mode : kModes)
    EXPECT_EQ(layer_plan(choice_of(mode), encoder_shape()).sinks, 0);
}

TEST(UniformAttention, TheBlockFollowsASmallWindowAndTheWindowTheBlock) {
  struct Case {
    std::optional<int64_t> window, block;
    int64_t expected_window, expected_block;
  };
  for (const Case& c : {Case{64, {}, 64, 64}, Case{1, {}, 1, 1}, Case{0, {}, 0, 128},
                        Case{128, {}, 128, 128}, Case{256, {}, 256, 128}, Case{64, 16, 64, 16},
                        Case{{}, 32, 128, 32}, Case{{}, 96, 192, 96}, Case{{}, 200, 200, 200}}) {
    UniformAttention choice = choice_of(AttentionMode::kKeys);
    choice.window = c.window;
    choice.block = c.block;
    const AttentionPlan plan = uniform_plan(choice, causal_shape());
    EXPECT_EQ(plan.layers[0].window, c.expected_window);
    EXPECT_EQ(plan.layers[0].block, c.expected_block);
  }
}

// Segments by the context's length, a window where it is short, tiles that fit both.
TEST(UniformAttention, RefineHasSizesForEveryContext) {
  struct Sizes {
    int64_t context, window, segment, tile;
  };
  for (const Sizes& sizes :
       {Sizes{1, 128, 128, 128}, Sizes{2048, 128, 128, 128}, Sizes{2049, 0, 256, 128},
        Sizes{8192, 0, 512, 128}, Sizes{int64_t{1} << 30, 0, 512, 128}}) {
    PlanShape shape = causal_shape();
    shape.context = sizes.context;
    UniformAttention choice;
    choice.mode = AttentionMode::kRefine;
    LayerPlan layer = layer_plan(choice, shape);
    EXPECT_EQ(layer.window, sizes.window);
    EXPECT_EQ(layer.refine.segment, sizes.segment);
    EXPECT_EQ(layer.refine.tile, sizes.tile);
    EXPECT_FALSE(layer.selects());
    choice.refine.segment = 32;
    layer = layer_plan(choice, shape);
    EXPECT_EQ(layer.refine.tile, 32);
    choice.refine.tile = 256;
    choice.refine.segment = 256;
    EXPECT_EQ(layer_plan(choice, shape).window, 0);
  }
}

TEST(CheckPlan, SinksLeaveAPageOfASegment) {
  UniformAttention choice;
  choice.mode = AttentionMode::kRefine;
  AttentionPlan plan = uniform_plan(choice, causal_shape());
  LayerPlan& layer = plan.layers[0];
  layer.refine.early = layer.refine.segment;  // its parts leave a page too
  layer.sinks = layer.refine.segment - layer.refine.page;
  EXPECT_NO_THROW(check_plan(plan, causal_shape()));
  layer.sinks += layer.refine.page;
  try {
    check_plan(plan, causal_shape());
    ADD_FAILURE() << layer.sinks << " sinks are not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("sinks leave nothing to cluster"), std::string::npos)
        << error.what();
  }
}

TEST(CheckPlan, RefusesSizesOfRefineThatDoNotFit) {
  const auto refuses = [](const std::function<void(LayerPlan&)>& spoil) {
    UniformAttention choice;
    choice.mode = AttentionMode::kRefine;
    AttentionPlan plan = uniform_plan(choice, causal_shape());
    spoil(plan.layers[0]);
    EXPECT_THROW(check_plan(plan, causal_shape()), Error);
  };
  refuses([](LayerPlan& layer) { layer.refine.page = 0; });
  refuses([](LayerPlan& layer) { layer.refine.page = 24; });
  refuses([](LayerPlan& layer) { layer.refine.segment = 0; });
  refuses([](LayerPlan& layer) { layer.refine.segment = 2 * kMaxSegment; });
  refuses([](LayerPlan& layer) { layer.sinks = layer.refine.segment; });
  refuses([](LayerPlan& layer) { layer.window = 100; });
  refuses([](LayerPlan& layer) { layer.refine.tile = 0; });
  refuses([](LayerPlan& layer) { layer.refine.tile_factor = 0; });
  refuses([](LayerPlan& layer) { layer.heads[0].delta = -1; });
  refuses([](LayerPlan& layer) { layer.heads[0].delta = std::nan(""); });
}

TEST(UniformAttention, LayersBeforeTheFirstAskedForAreDense) {
  UniformAttention choice = choice_of(AttentionMode::kCopy);
  choice.from_layer = 2;
  const AttentionPlan plan = uniform_plan(choice, causal_shape());
  ASSERT_EQ(plan.layers.size(), 3u);
  EXPECT_EQ(plan.layers[1].mode, AttentionMode::kDense);
  EXPECT_EQ(plan.layers[2].mode, AttentionMode::kCopy);
  EXPECT_FALSE(plan.all_dense());
  EXPECT_TRUE(plan_of(AttentionMode::kDense).all_dense());
}

TEST(UniformAttention, ALayerTheModelDoesNotHaveIsRefused) {
  for (const int64_t layer : {-1, 3}) {
    UniformAttention choice = choice_of(AttentionMode::kKeys);
    choice.from_layer = layer;
    expect_error([&] { uniform_plan(choice, causal_shape()); },
                 {"no layer " + std::to_string(layer)});
  }
}

TEST(LayerPlan, TausAreThoseOfClusteringHeadsOnceAndAscending) {
  LayerPlan layer;
  EXPECT_EQ(layer.taus(), std::vector<double>{0});
  layer.heads = {{HeadKind::kDense, 0.9}, {HeadKind::kWindow, 0.8}};
  EXPECT_EQ(layer.taus(), std::vector<double>{0});
  layer.heads.push_back({HeadKind::kClusters, 0.7});
  layer.heads.push_back({HeadKind::kClusters, 0.2});
  layer.heads.push_back({HeadKind::kClusters, 0.7});
  EXPECT_EQ(layer.taus(), (std::vector<double>{0.2, 0.7}));
}

TEST(CheckPlan, TheUniformPlansOfEveryModeAreSound) {
  for (const AttentionMode mode : kModes) {
    EXPECT_NO_THROW(plan_of(mode));
    EXPECT_NO_THROW(plan_of(mode, encoder_shape()));
  }
}

TEST(CheckPlan, RefusesAPlanOfAnotherModel) {
  expect_refused([](Layers& layers) { layers.pop_back(); }, {"2 layers", "3"});
  expect_refused([](Layers& layers) { layers[1].heads.pop_back(); }, {"1 key/value heads", "2"});
}

TEST(CheckPlan, RefusesATauOutsideItsRange) {
  for (const double tau : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()})
    expect_refused([&](Layers& layers) { layers[1].heads[1].tau = tau; }, {"tau", "0 … 1"});
}

TEST(CheckPlan, RefusesATauThatLayersCannotChoose) {
  const auto all_auto = [](Layers& layers) {
    for (LayerPlan& layer : layers) layer.tau_auto = true;
  };
  AttentionPlan plan = plan_of(AttentionMode::kKeys);
  for (LayerPlan& layer : plan.layers) {
    layer.tau_auto = true;
    layer.window = layer.block = 128;
  }
  check_plan(plan, causal_shape());
  plan.layers[1].window = 0;
  expect_error([&] { check_plan(plan, causal_shape()); }, {"first 256 tokens", "window 0"});
  plan.layers[1].block = 256;
  check_plan(plan, causal_shape());
  plan.layers[1].reuse = true;
  expect_error([&] { check_plan(plan, causal_shape()); }, {"reuses", "auto"});
  for (const AttentionMode mode : {AttentionMode::kCopy, AttentionMode::kPaper})
    expect_refused(all_auto, {"tau auto", std::string(mode_name(mode))}, mode);
  expect_refused(all_auto, {"tau auto", "encoder"}, AttentionMode::kKeys, encoder_shape());
  expect_refused([](Layers& layers) { layers[2].tau_auto = true; }, {"some layers", "tau auto"});
}

TEST(CheckPlan, RefusesHeadsThatDifferWhereAllMustCluster) {
  for (const AttentionMode mode : {AttentionMode::kCopy, AttentionMode::kPaper}) {
    const std::string name(mode_name(mode));
    expect_refused([](Layers& layers) { layers[2].heads[0].kind = HeadKind::kDense; },
                   {name, "dense heads"}, mode);
    expect_refused([](Layers& layers) { layers[2].heads[1].kind = HeadKind::kWindow; },
                   {name, "window-only heads"}, mode);
    expect_refused([](Layers& layers) { layers[2].heads[1].tau = 0.5; }, {name, "one tau"}, mode);
  }
}

TEST(CheckPlan, AcceptsHeadsThatDifferUnderKeys) {
  AttentionPlan plan = plan_of(AttentionMode::kKeys);
  plan.layers[0].heads = {{HeadKind::kDense}, {HeadKind::kClusters, 0.5}};
  plan.layers[1].heads = {{HeadKind::kWindow}, {HeadKind::kClusters, 0.2, FarKey::kOwn}};
  EXPECT_NO_THROW(check_plan(plan, causal_shape()));
}

TEST(CheckPlan, RefusesAWindowHeadInAnEncoder) {
  expect_refused([](Layers& layers) { layers[0].heads[0].kind = HeadKind::kWindow; },
                 {"encoder", "window"}, AttentionMode::kKeys, encoder_shape());
}

TEST(CheckPlan, RefusesExemptionsThatMakeNoSense) {
  expect_refused([](Layers& layers) { layers[0].sinks = -1; }, {"-1 sinks"});
  for (const double ratio : {-1.0, std::numeric_limits<double>::infinity()})
    expect_refused([&](Layers& layers) { layers[0].outlier_ratio = ratio; }, {"outlier ratio"});
}

TEST(CheckPlan, RefusesAWindowThatIsNoMultipleOfItsBlockAndNamesOneThatFits) {
  AttentionPlan plan = plan_of(AttentionMode::kKeys);
  plan.layers[1].window = 192;
  try {
    check_plan(plan, causal_shape());
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("window 192"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("block 128"), std::string::npos) << error.what();
    EXPECT_NE(error.hint().find("--window 192 --block 64"), std::string::npos) << error.hint();
  }
  plan.layers[1].block = 64;
  EXPECT_NO_THROW(check_plan(plan, causal_shape()));
  expect_refused([](Layers& layers) { layers[0].block = 0; }, {"block 0"});
  expect_refused([](Layers& layers) { layers[0].window = -128; }, {"window -128"});
}

TEST(CheckPlan, WhatHasNoNearKeysHasNoBorderToCheck) {
  AttentionPlan copy = plan_of(AttentionMode::kCopy);
  copy.layers[0].window = 192;
  EXPECT_NO_THROW(check_plan(copy, causal_shape()));
  AttentionPlan keys = plan_of(AttentionMode::kKeys, encoder_shape());
  keys.layers[0].window = 192;
  EXPECT_NO_THROW(check_plan(keys, encoder_shape()));
}

TEST(CheckPlan, RefusesThePapersCascadeOutsideThePapersMode) {
  for (const AttentionMode mode : {AttentionMode::kKeys, AttentionMode::kCopy})
    expect_refused([](Layers& layers) { layers[1].rule = SelectRule::kCascadePaper; },
                   {"cascade-paper", std::string(mode_name(mode))}, mode);
}

TEST(AttentionPlan, LayersWithASlidingWindowStayDense) {
  PlanShape shape = causal_shape();
  const AttentionPlan whole = plan_of(AttentionMode::kKeys);
  shape.windows = {0, 64, 0};
  for (const AttentionMode mode : {AttentionMode::kPaper, AttentionMode::kCopy,
                                   AttentionMode::kKeys, AttentionMode::kRefine}) {
    const AttentionPlan plan = plan_of(mode, shape);
    EXPECT_EQ(plan.layers[0].mode, mode);
    EXPECT_EQ(plan.layers[1], LayerPlan{});
    EXPECT_EQ(plan.layers[2].mode, mode);
    EXPECT_EQ(plan, fitted(plan_of(mode), shape));
  }
  EXPECT_NO_THROW(check_plan(whole, shape));
  shape.context = 64;  // the window holds all of it
  EXPECT_EQ(plan_of(AttentionMode::kKeys, shape), whole);
  EXPECT_EQ(fitted(whole, shape), whole);
}

TEST(CheckPlan, RefusesToReuseTheSetsOfALayerThatStaysDense) {
  PlanShape shape = causal_shape();
  AttentionPlan plan = plan_of(AttentionMode::kKeys);
  plan.layers[1].reuse = true;
  EXPECT_NO_THROW(check_plan(plan, shape));
  shape.windows = {64, 0, 0};
  expect_error([&] { check_plan(plan, shape); }, {"first", "reuse"});
}

TEST(CheckPlan, RefusesToReuseASetThatNobodyChose) {
  expect_refused([](Layers& layers) { layers[0].reuse = true; }, {"first", "reuse"});
  expect_refused(
      [](Layers& layers) {
        layers[0] = {};  // dense
        layers[1].reuse = true;
      },
      {"first", "reuse"});
}

TEST(CheckPlan, RefusesToReuseOwnersOfAnotherKind) {
  const LayerPlan paper = plan_of(AttentionMode::kPaper).layers[0];
  for (const AttentionMode mode : {AttentionMode::kKeys, AttentionMode::kCopy}) {
    const std::string name(mode_name(mode));
    expect_refused(
        [&](Layers& layers) {
          layers[0] = paper;
          layers[1].reuse = true;
        },
        {name, "reuse", "paper"}, mode);
    expect_refused(
        [&](Layers& layers) {
          layers[1] = paper;
          layers[1].reuse = true;
        },
        {name, "reuse", "paper"}, mode);
  }
  AttentionPlan all_paper = plan_of(AttentionMode::kPaper);
  all_paper.layers[1].reuse = true;
  EXPECT_NO_THROW(check_plan(all_paper, causal_shape()));
}

TEST(CheckPlan, RefusesToReuseASetOfAnotherTau) {
  expect_refused(
      [](Layers& layers) {
        layers[1].reuse = true;
        layers[1].heads[1].tau = 0.25;
      },
      {"tau 0.25", "0.3"});
  // The taus in force are those of the layer that chose, however often they are reused.
  expect_refused(
      [](Layers& layers) {
        layers[0].heads[0].tau = 0.2;
        layers[1].reuse = layers[2].reuse = true;
        layers[1].heads[0].tau = layers[1].heads[1].tau = 0.2;
        layers[2].heads[0].tau = 0.5;
      },
      {"tau 0.5", "0.2, 0.3"});
}

TEST(CheckPlan, AcceptsReuseOfSetsThatAreThere) {
  AttentionPlan plan = plan_of(AttentionMode::kKeys);
  plan.layers[0].heads[0].tau = 0.2;
  plan.layers[1].reuse = true;
  plan.layers[1].mode = AttentionMode::kCopy;  // one of the two sets
  plan.layers[2].reuse = true;
  plan.layers[2].heads = {{HeadKind::kWindow, 0.9}, {HeadKind::kClusters, 0.2}};
  EXPECT_NO_THROW(check_plan(plan, causal_shape()));
}

}  // namespace
}  // namespace sluice::impl::test
