// Figures of texts and plans: those of the library's own functions.

#include "sluice/evaluate.h"

#include <gtest/gtest.h>

#include "eval/compare/compare_plans.h"
#include "eval/compare/perplexity.h"
#include "sanitized.h"
#include "unit/api/api_models.h"

namespace sluice::test {
namespace {

class ApiEvaluate : public testing::Test {
 protected:
  static constexpr int64_t kContext = 400, kWindows = 2;

  Model model = Model::load(demo_model(), {.context = kContext});
  const std::shared_ptr<const impl::Checkpoint> checkpoint = impl::open_checkpoint(demo_model());
  const std::unique_ptr<impl::Tokenizer> tokenizer = impl::open_tokenizer_of(*checkpoint);
  impl::Model own{
      checkpoint, impl::make_cpu_backend(impl::DType::kF32), {.context = kContext, .progress = {}}};
};

TEST_F(ApiEvaluate, PerplexityIsThatOfTheProgram) {
  std::vector<int64_t> windows;
  const Evaluation found =
      evaluate(model, demo_text(), {},
               {.max_windows = kWindows, .progress = [&](int64_t n) { windows.push_back(n); }});
  EXPECT_EQ(windows, (std::vector<int64_t>{1, 2}));
  impl::TextStream text(demo_text(), *tokenizer, "<|endoftext|>");
  const impl::PerplexityResult expected =
      impl::evaluate_perplexity(own, text, {.max_windows = kWindows}, {});
  EXPECT_EQ(found.perplexity.value, expected.perplexity());
  EXPECT_EQ(found.perplexity.standard_error, expected.standard_error());
  EXPECT_EQ(found.loss.value, expected.loss.mean());
  EXPECT_EQ(found.n_tokens, kWindows * kContext);
  EXPECT_EQ(found.n_windows, kWindows);
  EXPECT_TRUE(found.plans.empty());
}

TEST_F(ApiEvaluate, PlansAreComparedAsByTheProgram) {
  if (impl::test::kSanitized)
    GTEST_SKIP() << "takes minutes under a sanitizer; shorter texts run there";
  const std::vector<Plan> plans = {Plan(), Plan::uniform({.mode = AttentionMode::kRefine}),
                                   Plan::uniform({.mode = AttentionMode::kKeys, .tau = 0.5})};
  const Evaluation found = evaluate(model, demo_text(), plans, {.max_windows = kWindows});
  std::vector<impl::Plan> choices(3);
  for (const auto& [i, mode] :
       {std::pair(1u, impl::AttentionMode::kRefine), {2u, impl::AttentionMode::kKeys}}) {
    impl::UniformAttention choice;
    choice.mode = mode;
    choice.tau = 0.5;
    choices[i].attention = impl::uniform_plan(choice, own.plan_shape());
  }
  impl::TextStream text(demo_text(), *tokenizer, "<|endoftext|>");
  const impl::CompareResult expected =
      impl::compare_plans(own, text, choices, {.max_windows = kWindows}, {});
  ASSERT_EQ(found.plans.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const PlanLoss& plan = found.plans[i];
    const impl::Comparison& tokens = expected.plans[i].tokens;
    EXPECT_EQ(found.perplexity.value, tokens.value(impl::metric("ppl_base")));
    EXPECT_EQ(plan.perplexity.value, tokens.value(impl::metric("ppl")));
    EXPECT_EQ(plan.perplexity_ratio.value, tokens.value(impl::metric("ppl_ratio")));
    EXPECT_EQ(plan.perplexity_ratio.standard_error, tokens.error(impl::metric("ppl_ratio")));
    EXPECT_EQ(plan.kl.value, tokens.value(impl::metric("kl_mean")));
    EXPECT_EQ(plan.kl.standard_error, tokens.error(impl::metric("kl_mean")));
    EXPECT_EQ(plan.kl_p99, tokens.value(impl::metric("kl_p99")));
    EXPECT_EQ(plan.top1_agreement.value, tokens.value(impl::metric("top1_agreement")));
    EXPECT_EQ(plan.keys_read, expected.plans[i].work.keys_read_fraction());
    EXPECT_EQ(plan.cache_bytes_share, expected.plans[i].cache.share_of_dense());
  }
  EXPECT_EQ(found.plans[0].kl.value, 0);
  EXPECT_EQ(found.plans[0].keys_read, 1);
  for (const size_t i : {1, 2}) {
    EXPECT_GT(found.plans[i].kl.value, 0);
    EXPECT_LT(found.plans[i].keys_read, 1);
  }
  EXPECT_LT(found.plans[2].cache_bytes_share, 1);
}

TEST_F(ApiEvaluate, RefusesWhatItCannotDo) {
  const TempDir dir;
  expect_error([&] { evaluate(model, dir.path() / "none.txt"); }, {"none.txt"});
  expect_error([&] { evaluate(model, dir.write("empty.txt", "")); }, {});
  expect_error([&] { evaluate(model, demo_text(), {}, {.max_windows = -1}); }, {"max_windows"});
  Model encoder = Model::load(ModelFolder("bert").path());
  expect_error([&] { evaluate(encoder, demo_text()); }, {});
  struct Thrown {};
  EXPECT_THROW(evaluate(model, demo_text(), {}, {.progress = [](int64_t) { throw Thrown(); }}),
               Thrown);
}

}  // namespace
}  // namespace sluice::test
