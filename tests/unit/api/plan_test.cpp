// Plans: options, files, and which models they are for.

#include "sluice/plan.h"

#include <gtest/gtest.h>

#include <limits>

#include "unit/api/api_models.h"
#include "unit/api/plan_files.h"

namespace sluice::test {
namespace {

TEST(ApiPlan, IsDenseUnlessToldOtherwise) {
  EXPECT_TRUE(Plan().is_dense());
  EXPECT_TRUE(Plan::uniform({}).is_dense());
  EXPECT_FALSE(Plan().why_dense(1, 1).empty());
  EXPECT_FALSE(Plan().info().has_value());
  const Plan refine = Plan::uniform({.mode = AttentionMode::kRefine});
  EXPECT_FALSE(refine.is_dense());
  EXPECT_EQ(refine.why_dense(1, 1), "");
  EXPECT_FALSE(refine.info().has_value());
}

TEST(ApiPlan, RefusesOptionsOutOfRange) {
  const auto refused = [](const AttentionOptions& options, const char* name) {
    expect_error([&] { Plan::uniform(options); }, {name});
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const double delta : {-1.0, kNan}) refused({.delta = delta}, "delta");
  for (const double tau : {-0.1, 1.0, kNan}) refused({.tau = tau}, "tau");
  refused({.window = -1}, "window");
  refused({.sinks = -1}, "sinks");
  refused({.from_layer = -1}, "from_layer");
  refused({.mode = static_cast<AttentionMode>(9)}, "mode");
  const Plan all_means = Plan::uniform(
      {.mode = AttentionMode::kRefine, .delta = std::numeric_limits<double>::infinity()});
  EXPECT_FALSE(all_means.is_dense());
}

TEST(ApiPlan, RefusesWhatAModelCannotFollow) {
  // A window of its own: its layers stay dense under any plan.
  const ModelFolder folder("mistral"), gpt2("gpt2");
  Model mistral = Model::load(folder.path());
  EXPECT_NO_THROW(Sequence(mistral, Plan::uniform({.mode = AttentionMode::kKeys})));
  const TempDir dir;
  const auto path = dir.path() / "plan.json";
  impl::write_plan_file(plan_file_for(gpt2.path(), impl::AttentionMode::kCopy, 32), path);
  const Plan of_another = Plan::load(path);
  expect_error([&] { Sequence sequence(mistral, of_another); }, {"plan"});
}

TEST(ApiPlan, AFileSaysWhatItWasMadeFor) {
  const ModelFolder folder("gpt2");
  const TempDir dir;
  const auto path = dir.path() / "plan.json";
  impl::write_plan_file(plan_file_for(folder.path(), impl::AttentionMode::kCopy, 32), path);
  const Plan plan = Plan::load(path);
  EXPECT_FALSE(plan.is_dense());
  const PlanInfo info = plan.info().value();
  EXPECT_EQ(info.family, "gpt2");
  EXPECT_FALSE(info.linear);
  EXPECT_EQ(info.context, 32);
  EXPECT_EQ(info.objective, Objective::kPrefill);
  EXPECT_EQ(info.max_kl, 0.5);
  EXPECT_EQ(info.max_kl_p99, 5);
  EXPECT_FALSE(info.max_ppl_ratio.has_value());
  EXPECT_EQ(info.prefill_from, 4);
  EXPECT_EQ(info.decode_from, 8);
  EXPECT_EQ(info.measured_on, "f32, a processor, 2 threads");
  EXPECT_NE(plan.why_dense(3, 1), "");  // reading is faster from 4 on,
  EXPECT_EQ(plan.why_dense(4, 1), "");
  EXPECT_NE(plan.why_dense(4, 2), "");  // generating after 8,
  EXPECT_EQ(plan.why_dense(8, 2), "");
  EXPECT_NE(plan.why_dense(33, 2), "");  // and nothing was measured beyond 32

  plan.save(dir.path() / "again.json");
  EXPECT_EQ(read_bytes(dir.path() / "again.json"), read_bytes(path));
  Model model = Model::load(folder.path());
  Sequence sequence(model, Plan::load(dir.path() / "again.json"));
  sequence.append(std::vector<int32_t>{3, 4, 5});
  Sequence uniform(model, Plan::uniform({.mode = AttentionMode::kCopy}));
  uniform.append(std::vector<int32_t>{3, 4, 5});
  EXPECT_TRUE(std::equal(sequence.logits().begin(), sequence.logits().end(),
                         uniform.logits().begin(), uniform.logits().end()));
}

TEST(ApiPlan, RefusesFilesThatAreNoPlanForTheModel) {
  const ModelFolder folder("gpt2");
  const TempDir dir;
  expect_error([&] { Plan::load(dir.path() / "none.json"); }, {"none.json"});
  expect_error([&] { Plan::load(dir.path()); }, {dir.path().filename().string()});
  expect_error([&] { Plan::load(dir.write("bad.json", "{\"format\":")); }, {"bad.json"});
  expect_error([&] { Plan::load(dir.write("other.json", "{\"format\":\"x\"}")); }, {"other.json"});
  expect_error([&] { Plan().save(dir.path() / "plan.json"); }, {"no file"});
  expect_error(
      [&] { Plan::uniform({.mode = AttentionMode::kKeys}).save(dir.path() / "plan.json"); },
      {"no file"});

  impl::PlanFile file = plan_file_for(folder.path(), impl::AttentionMode::kCopy, 32);
  file.model.sha256 = std::string(64, '0');
  impl::write_plan_file(file, dir.path() / "plan.json");
  const Plan of_another = Plan::load(dir.path() / "plan.json");
  expect_error([&] { of_another.save(dir.path() / "no" / "folder.json"); }, {"folder.json"});
  Model model = Model::load(folder.path());
  expect_error([&] { Sequence sequence(model, of_another); }, {"plan.json", "model"});
  expect_error([&] { generate(model, "abc", {.plan = of_another, .always = true}); },
               {"plan.json"});
  const std::vector<Plan> plans = {of_another};
  expect_error([&] { evaluate(model, demo_text(), plans); }, {"plan.json"});
}

}  // namespace
}  // namespace sluice::test
