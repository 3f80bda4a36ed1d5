// From a contract to a plan that others follow.

#include "sluice/tune.h"

#include <gtest/gtest.h>

#include <limits>

#include "unit/api/api_models.h"

namespace sluice::test {
namespace {

class ApiTune : public testing::Test {
 protected:
  ApiTune() {
    std::string documents;
    for (int i = 0; i < 12; ++i) documents += letter_text(300) + "<|endoftext|>";
    text = folder.write("documents.txt", documents);
    options.max_kl = 0.5;
    options.objective = Objective::kMemory;  // no clock decides
    options.mode = AttentionMode::kKeys;
    options.context = 128;
    options.n_windows = 2;
    options.n_held_out = 3;
    options.needles = false;
  }

  Model longer() const {  // the model's context is what its configuration says
    folder.set_config("max_position_embeddings", 160);
    return Model::load(folder.path());
  }

  const ModelFolder folder{"llama"};
  Model model = longer();
  std::filesystem::path text;
  TuneOptions options;
};

TEST_F(ApiTune, ThePlanKeepsItsContractAndIsFollowed) {
  double last = 0;
  options.progress = [&](double done, std::string_view now) {
    EXPECT_GE(done, last);
    EXPECT_FALSE(now.empty());
    last = done;
  };
  const TuneResult result = tune(model, text, options);
  EXPECT_GT(last, 0);
  ASSERT_FALSE(result.plan.is_dense()) << result.dense_because;
  EXPECT_LE(result.held_out.kl.value + 2 * result.held_out.kl.standard_error, 0.5);
  EXPECT_GT(result.held_out.kl.value, 0);
  EXPECT_LE(result.held_out.kl_p99, result.held_out.kl_p999);
  EXPECT_EQ(result.held_out.n_tokens, 3 * 128);
  EXPECT_EQ(result.calibration.n_tokens, 2 * 128);
  EXPECT_EQ(result.held_out.n_needles, 0);
  const PlanInfo info = result.plan.info().value();
  EXPECT_EQ(info.family, "llama");
  EXPECT_EQ(info.context, 128);
  EXPECT_EQ(info.objective, Objective::kMemory);
  EXPECT_EQ(info.max_kl, 0.5);
  EXPECT_EQ(info.max_kl_p99, 5);

  const TempDir dir;
  result.plan.save(dir.path() / "plan.json");
  const std::vector<Plan> plans = {result.plan, Plan::load(dir.path() / "plan.json")};
  const Evaluation found = evaluate(model, text, plans);
  EXPECT_GT(found.plans[0].kl.value, 0);
  EXPECT_LT(found.plans[0].cache_bytes_share, 1);
  EXPECT_EQ(found.plans[0].kl.value, found.plans[1].kl.value);
}

TEST_F(ApiTune, MeasurementsAreKeptForAnotherContract) {
  const TempDir dir;
  options.measurements = dir.path() / "measurements";
  const TuneResult first = tune(model, text, options);
  EXPECT_TRUE(std::filesystem::exists(options.measurements));
  const TuneResult again = tune(model, text, options);
  EXPECT_EQ(first.held_out.kl.value, again.held_out.kl.value);
}

TEST_F(ApiTune, RefusesWhatHasNoMeaning) {
  const auto refused = [&](auto change, const char* word) {
    TuneOptions other = options;
    change(other);
    expect_error([&] { tune(model, text, other); }, {word});
  };
  refused([](TuneOptions& o) { o.max_kl = {}; }, "loss");
  refused([](TuneOptions& o) { o.max_kl = -1; }, "max_kl");
  refused([](TuneOptions& o) { o.max_kl = std::numeric_limits<double>::quiet_NaN(); }, "max_kl");
  refused([](TuneOptions& o) { o.max_ppl_ratio = 0.5; }, "max_ppl_ratio");
  refused([](TuneOptions& o) { o.max_kl_p99 = -1; }, "max_kl_p99");
  refused([](TuneOptions& o) { o.context = 161; }, "161");
  refused([](TuneOptions& o) { o.context = -1; }, "context");
  refused([](TuneOptions& o) { o.n_windows = 0; }, "n_windows");
  refused([](TuneOptions& o) { o.n_held_out = 1; }, "n_held_out");
  refused([](TuneOptions& o) { o.mode = AttentionMode::kCopy; }, "mode");
  refused([](TuneOptions& o) { o.mode = AttentionMode::kRefine; }, "memory");
  refused([](TuneOptions& o) { o.objective = Objective::kReads; }, "reads");
  expect_error([&] { tune(model, folder.file("none.txt"), options); }, {"none.txt"});
  Model encoder = Model::load(ModelFolder("bert").path());
  expect_error([&] { tune(encoder, text, options); }, {"encoder"});
}

}  // namespace
}  // namespace sluice::test
