// What analyze finds of a plan, against what it finds of the same choice without one, and against a
// run that follows the plan.

#include "eval/analyze/plan_profile.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "eval/analyze/analyze.h"
#include "eval/compare/attention_work.h"
#include "unit/model/byte_tokenizer.h"
#include "unit/model/golden_models.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

constexpr double kTau = 0.6;

class ProfilePlan : public testing::Test {
 protected:
  static constexpr int64_t kWindow = 24;

  ProfilePlan() {
    golden.context = kWindow;
    model = std::make_unique<Model>(load(golden, {"reference", DType::kF32}));
    norms = projection_norms(*open_checkpoint(golden.path()));
    std::string content;
    for (size_t i = 0; i < 2 * kWindow; ++i) content += static_cast<char>('A' + i * i % 17);
    path = dir.write("text", content);
  }
  TextStream text() const { return TextStream(path, tokenizer, "|"); }
  AttentionPlan uniform() const {
    UniformAttention choice;
    choice.mode = AttentionMode::kKeys;
    choice.tau = kTau;
    choice.window = choice.block = 4;
    return uniform_plan(choice, model->plan_shape());
  }
  PlanProfile profile(const AttentionPlan& plan, int64_t n_windows = 2) {
    TextStream stream = text();
    return profile_plan(*model, norms, stream, plan, {.n_tokens = kWindow, .n_windows = n_windows},
                        [&](double done) { progress = done; });
  }

  const TempDir dir;
  const ByteTokenizer tokenizer{{.first_byte = 32, .vocab = 64, .bos = {}, .eos = 63}};
  GoldenModel golden = golden_model("models/llama");
  std::unique_ptr<Model> model;
  ProjectionNorms norms;
  std::filesystem::path path;
  double progress = 0;
};

TEST_F(ProfilePlan, OfOneRuleEverywhereHasTheFiguresOfThatRule) {
  const AttentionPlan plan = uniform();
  const LayerPlan& layer = plan.layers[0];
  AnalyzeOptions options;
  options.taus = {kTau};
  options.spaces = {row_space_of(space_name(layer.space)).value()};
  options.rules = {layer.rule};
  options.sinks = layer.sinks;
  options.outlier_ratio = layer.outlier_ratio;
  options.n_windows = 2;
  TextStream stream = text();
  const Profile expected = analyze(*model, norms, stream, kWindow, options, {}).profiles[0];
  const PlanProfile found = profile(plan);
  EXPECT_EQ(progress, 1);
  EXPECT_EQ(found.n_windows, 2);
  ASSERT_EQ(found.layers.size(), expected.layers.size());
  bool any_outside = false;
  for (size_t l = 0; l < found.layers.size(); ++l) {
    ASSERT_EQ(found.layers[l].taus, std::vector{kTau});
    const SetFigures &set = found.layers[l].sets[0], &same = expected.layers[l].sets[kCascadeSet];
    for (const SetFigureName& entry : kSetFigureNames) {
      SCOPED_TRACE(entry.name);
      EXPECT_EQ((set.*entry.figure).count(), (same.*entry.figure).count());
      EXPECT_DOUBLE_EQ((set.*entry.figure).mean(), (same.*entry.figure).mean());
    }
    any_outside = any_outside || set.n_outside.mean() > 0;
  }
  EXPECT_TRUE(any_outside) << "nothing is merged: the test shows nothing";
}

// The first layer reads the same, whatever the layers do.
TEST_F(ProfilePlan, CountsTheKeysThatARunReads) {
  AttentionPlan plan = uniform();
  plan.layers[0].heads[0] = {.kind = HeadKind::kWindow};
  const PlanProfile found = profile(plan, 1);
  TextStream stream = text();
  const std::vector<int32_t> tokens = first_window(stream, kWindow);
  KvCache cache = model->make_cache(1, kWindow, plan);
  model->forward(tokens, cache);
  AttentionWork work;
  work.add_layer({.plan = &plan.layers[0],
                  .selector = cache.selector(0),
                  .n_kv_heads = model->spec().n_kv_heads,
                  .n_tokens = kWindow});
  EXPECT_LT(work.keys_read_fraction(), 1);
  EXPECT_DOUBLE_EQ(found.layers[0].keys_read.mean(), work.keys_read_fraction());
  EXPECT_DOUBLE_EQ(found.layers[0].clusters_fraction.mean(), work.clusters_fraction());
  // Layers weigh alike.
  double sum = 0;
  for (const PlanLayerProfile& layer : found.layers) sum += layer.keys_read.mean();
  EXPECT_NEAR(found.keys_read.mean(), sum / static_cast<double>(found.layers.size()), 1e-12);
}

TEST_F(ProfilePlan, HasNoSetsWhereNoHeadClusters) {
  AttentionPlan plan = uniform();
  plan.layers[0] = {};
  for (HeadPlan& head : plan.layers[1].heads) head = {.kind = HeadKind::kWindow};
  const PlanProfile found = profile(plan);
  EXPECT_TRUE(found.layers[0].sets.empty());
  EXPECT_EQ(found.layers[0].keys_read.mean(), 1);
  EXPECT_TRUE(found.layers[1].sets.empty());
  EXPECT_LT(found.layers[1].keys_read.mean(), 1);
  EXPECT_LT(found.layers[1].clusters_fraction.mean(), 1);
  const nlohmann::json written = plan_profile_json(found, plan);
  EXPECT_EQ(written.at("n_windows"), 2);
  EXPECT_TRUE(written.at("tau").is_null());
  EXPECT_EQ(written.at("rows"), nlohmann::json::array());
  EXPECT_EQ(written.at("layers").at(0).at("keys_read_fraction"), 1);
  EXPECT_EQ(written.at("summary").at("keys_read_fraction"), found.keys_read.mean());
  // Without layers all are dense.
  for (const PlanLayerProfile& layer : profile({}).layers) EXPECT_EQ(layer.keys_read.mean(), 1);
}

TEST_F(ProfilePlan, AReusedSetIsTheOneBefore) {
  AttentionPlan plan = uniform();
  plan.layers[1].reuse = true;
  const PlanProfile found = profile(plan);
  const SetFigures &first = found.layers[0].sets[0], &reused = found.layers[1].sets[0];
  EXPECT_EQ(reused.n_reps.mean(), first.n_reps.mean());
  EXPECT_EQ(reused.turnover.mean(), 0);
  EXPECT_EQ(reused.products_computed.mean(), 0);
  EXPECT_EQ(reused.copy_error.count(), 2);
  for (const RunningMean SetFigures::*figure :
       {&SetFigures::uncovered, &SetFigures::owner_cosine_min, &SetFigures::bound_tau})
    EXPECT_EQ((reused.*figure).count(), 0);
  EXPECT_EQ(plan_profile_json(found, plan)["rows"][1]["rule"], "reused");
}

TEST_F(ProfilePlan, RefusesWhatItCannotFollow) {
  AttentionPlan plan = uniform();
  plan.layers[1].mode = AttentionMode::kPaper;
  expect_error([&] { profile(plan); }, {"layer 1", "attention paper"});
  ModelSpec encoder = model->spec();
  encoder.causal = false;
  expect_error([&] { check_profiled_plan({}, encoder); }, {"is an encoder"});
}

}  // namespace
}  // namespace sluice::impl::test
