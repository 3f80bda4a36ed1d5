// Tuning with refined attention: what heads may do, how it is measured, and the plan that comes
// out.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tune/changes.h"
#include "tune/tune.h"
#include "unit/model/byte_tokenizer.h"
#include "unit/model/golden_models.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(RefinedHeads, ChooseAmongDeltasAndTheWindowAlone) {
  HeadOptions options;
  options.deltas = {0.03, kInf};
  ASSERT_EQ(options.n_choices(), 3);
  EXPECT_EQ(options.choice(0), (HeadPlan{.kind = HeadKind::kClusters, .delta = 0.03}));
  EXPECT_EQ(options.choice(1), (HeadPlan{.kind = HeadKind::kClusters, .delta = kInf}));
  EXPECT_EQ(options.choice(2).kind, HeadKind::kWindow);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(options.cost_of(i), static_cast<size_t>(i));
    EXPECT_EQ(options.cost_of(options.choice(i)), static_cast<size_t>(i));
  }
}

TEST(RefinedHeads, NamesOfMeasurementsSayHowTheyWereTaken) {
  HeadOptions options;
  options.windows = {128, 32};
  options.refine = with_defaults({}, /*window=*/0, /*context=*/4096);
  EXPECT_EQ((HeadChange{3, 1, 0, 2}.name(options)),
            "layer 3 head 1 w128 refine 0.03 s256 e64 p16 t128");
  EXPECT_EQ((HeadChange{3, 1, 1, 5}.name(options)),
            "layer 3 head 1 w32 refine inf s256 e64 p16 t32");
  EXPECT_EQ((HeadChange{3, 1, 1, 6}.name(options)),
            "layer 3 head 1 w32 refine window s256 e64 p16 t32");
  options.strict = true;
  EXPECT_EQ((HeadChange{3, 1, 0, 2}.name(options)),
            "layer 3 head 1 w128 refine 0.03 s256 e64 p16 t1");
  options.mode = AttentionMode::kKeys;
  EXPECT_EQ((HeadChange{3, 1, 0, 0}.name(options)), "layer 3 head 1 w128 centroid 0.3");
}

class RefineTune : public testing::Test {
 protected:
  RefineTune() {
    GoldenModel golden = golden_model("models/llama");
    golden.context = 48;
    model = std::make_unique<Model>(load(golden, {"reference", DType::kF32}));
    for (size_t i = 0; i < 2000; ++i) {
      content += static_cast<char>('A' + i * i % 23 % 11);
      if (i % 80 == 79) content += '|';
    }
    options.split = {.context = 32, .n_calibration = 2, .n_held_out = 3, .seed = 1};
    options.heads.windows = {8};
    options.heads.deltas = {0.01, 0.1, kInf};
    options.heads.refine.segment = 8;
    options.heads.refine.page = 4;
    options.objective = PlanObjective::kMemory;  // no clock decides
    options.needles = false;
    options.bench_rounds = 1;
  }
  // Costs that fall with delta, as if they had been measured before.
  TuneResult run() {
    LayerCosts layer{.dense_head = 10, .exact_head = {11}, .head = {{8, 6, 4, 2}}, .select = {{}}};
    layer.select[0].assign(4, 0);
    Costs costs;
    costs.heads.assign(static_cast<size_t>(model->spec().n_layers), layer);
    costs.linear.assign(costs.heads.size(), {kLinearInputs.size(), {0.0}});
    Measurements measurements({}, {});
    measurements.set_times(
        {{costs_key("", {.objective = options.objective, .heads = options.heads, .linear = {}}),
          describe_costs(costs)}});
    TextStream text(dir.write("text", content), tokenizer, "|");
    return tune(*model, text, options, measurements, [](double, const std::string&) {});
  }

  const TempDir dir;
  const ByteTokenizer tokenizer{{.first_byte = 32, .vocab = 64, .bos = {}, .eos = 63}};
  std::unique_ptr<Model> model;
  std::string content;
  TuneOptions options;
};

TEST_F(RefineTune, WhatIsPromisedHoldsOnHeldOutText) {
  for (const double max_kl : {1e-3, 1.0}) {
    options.contract.max_kl = max_kl;
    const TuneResult result = run();
    EXPECT_LE(result.held_out.kl.mean() + 2 * result.held_out.kl.standard_error(), max_kl);
    EXPECT_NO_THROW(check_plan(result.plan.attention, model->plan_shape()));
    EXPECT_DOUBLE_EQ(PlanLosses(*model, result.text.held_out).of(result.plan).kl.mean(),
                     result.held_out.kl.mean());
    EXPECT_LE(result.cost, result.dense_cost);
    if (max_kl == 1.0) {
      EXPECT_LT(result.cost, result.dense_cost);
    }
    for (const LayerPlan& layer : result.plan.attention.layers) {
      EXPECT_FALSE(layer.reuse);
      if (layer.mode == AttentionMode::kDense) continue;
      EXPECT_EQ(layer.mode, AttentionMode::kRefine);
      EXPECT_EQ(layer.refine.tile, 8);
      EXPECT_EQ(layer.refine.segment, 8);
    }
  }
}

TEST_F(RefineTune, SizesThatDoNotFitAreRefusedBeforeTheWork) {
  options.contract.max_kl = 1;
  options.heads.windows = {8, 12};
  EXPECT_THROW(run(), Error);
}

// Under tiles of one query a prompt is read as if it had been decoded.
TEST_F(RefineTune, DecodingIsMeasuredWithQueriesThatDecideAlone) {
  HeadOptions& heads = options.heads;
  heads.refine.tile = 8;
  const PlanShape shape = model->plan_shape();
  AttentionPlan shared = plan_of_all(heads, 8, heads.choice(0), shape);
  const AttentionPlan strict = with_strict_tiles(shared);
  for (const LayerPlan& layer : strict.layers) EXPECT_EQ(layer.refine.tile, 1);
  EXPECT_EQ(plan_with({0, 0, 0, 0}, heads, shape).layers[0].refine.tile, 8);
  heads.strict = true;
  EXPECT_EQ(plan_with({0, 0, 0, 0}, heads, shape).layers[0].refine.tile, 1);

  std::vector<int32_t> tokens(32);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * i % 7);
  KvCache whole = model->make_cache(1, 32, strict), steps = model->make_cache(1, 32, shared);
  const std::vector<float> read = logits_of(*model, tokens, whole);
  std::vector<float> decoded;
  for (const int32_t token : tokens) {
    const std::vector<float> row = logits_of(*model, {token}, steps);
    decoded.insert(decoded.end(), row.begin(), row.end());
  }
  ASSERT_EQ(read.size(), decoded.size());
  for (size_t i = 0; i < read.size(); ++i) EXPECT_NEAR(read[i], decoded[i], 1e-4) << i;
}

}  // namespace
}  // namespace sluice::impl::test
