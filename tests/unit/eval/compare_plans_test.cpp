// Plans against the exact model on windows of a text: identities, and the same figures whether a
// plan runs alone or with others.

#include "eval/compare/compare_plans.h"

#include <gtest/gtest.h>

#include "eval/compare/perplexity.h"
#include "unit/model/byte_tokenizer.h"
#include "unit/model/golden_models.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

class CompareAttention : public testing::TestWithParam<ModelSetup> {
 protected:
  static constexpr int64_t kContext = 24;

  CompareAttention() {
    GoldenModel golden = golden_model("models/llama");
    golden.context = kContext;
    model = std::make_unique<Model>(load(golden, GetParam()));
    for (size_t i = 0; i < 60; ++i) content += static_cast<char>('A' + i * i % 7);
  }

  // block: of `keys`, and its window.
  Plan plan(AttentionMode mode, double tau = 0.3, int64_t block = 4) const {
    UniformAttention choice;
    choice.mode = mode;
    choice.tau = tau;
    choice.window = choice.block = block;
    return {.attention = uniform_plan(choice, model->plan_shape())};
  }
  CompareResult compare(const std::vector<Plan>& plans, const CompareOptions& options = {}) {
    TextStream text(dir.write("text", content), tokenizer, "");
    return compare_plans(*model, text, plans, options, {});
  }

  const TempDir dir;
  const ByteTokenizer tokenizer{{.first_byte = 32, .vocab = 64, .bos = {}, .eos = 63}};
  std::unique_ptr<Model> model;
  std::string content;
};

TEST_P(CompareAttention, DenseWithItselfIsExactlyNothing) {
  const CompareResult result = compare({plan(AttentionMode::kDense)});
  const PlanComparison& dense = result.plans.front();
  EXPECT_EQ(result.n_windows, 3);  // 60 letters behind a first token
  EXPECT_EQ(dense.tokens.n_tokens(), 60);
  EXPECT_EQ(dense.tokens.value(metric("kl_max")), 0);
  EXPECT_EQ(dense.tokens.value(metric("ppl_ratio")), 1);
  EXPECT_EQ(dense.tokens.error(metric("ppl_ratio")), 0);
  EXPECT_EQ(dense.tokens.value(metric("delta_p_rms")), 0);
  EXPECT_EQ(dense.tokens.value(metric("top1_agreement")), 1);
  EXPECT_EQ(dense.work.keys_read_fraction(), 1);
  EXPECT_EQ(dense.work.clusters_fraction(), 1);
}

TEST_P(CompareAttention, LossesOfTheFirstWindowAreKeptOneByOne) {
  const std::vector<Plan> plans = {plan(AttentionMode::kDense), plan(AttentionMode::kKeys, 0.9)};
  const CompareResult all = compare(plans);
  ASSERT_EQ(std::ssize(all.first_tokens), kContext + 1);  // the last is predicted from the window
  for (size_t i = 1; i < all.first_tokens.size(); ++i)
    EXPECT_EQ(all.first_tokens[i], content[i - 1] - 32) << i;
  for (const float kl : all.plans[0].first_kl) EXPECT_EQ(kl, 0);
  const CompareResult first = compare(plans, {.max_windows = 1});
  EXPECT_EQ(first.plans[1].first_kl, all.plans[1].first_kl);
  ASSERT_EQ(std::ssize(first.plans[1].first_kl), kContext);
  double sum = 0;
  for (const float kl : first.plans[1].first_kl) sum += kl;
  EXPECT_GT(sum, 0);
  // Each was rounded to float32.
  EXPECT_NEAR(sum / kContext, first.plans[1].tokens.value(metric("kl_mean")), 1e-6 * sum);
}

TEST_P(CompareAttention, BasePerplexityIsThatOfTheModelAlone) {
  const CompareResult result = compare({plan(AttentionMode::kKeys, 0.9)});
  TextStream text(dir.write("text", content), tokenizer, "");
  const PerplexityResult alone = evaluate_perplexity(*model, text, {}, {});
  // There the logarithm of the sum over exponentials is rounded to float32, 2^-20 below 16.
  EXPECT_NEAR(std::log(result.plans.front().tokens.value(metric("ppl_base"))), alone.loss.mean(),
              0x1p-20);
  EXPECT_NEAR(result.plans.front().tokens.error(metric("ppl_base")), alone.standard_error(),
              1e-5 * alone.standard_error());
}

TEST_P(CompareAttention, KeysThatMergeNothingAreDense) {
  const CompareResult result =
      compare({plan(AttentionMode::kKeys, 0), plan(AttentionMode::kKeys, 0.9, 128)});
  for (const PlanComparison& same : result.plans) {
    // Logits differ by round-off, some 1e-5 of their range at most, and the divergence is of second
    // order in that.
    EXPECT_LT(same.tokens.value(metric("kl_max")), 1e-7);
    EXPECT_NEAR(same.tokens.value(metric("ppl_ratio")), 1, 1e-5);
    EXPECT_EQ(same.work.keys_read_fraction(), 1);
  }
  EXPECT_EQ(result.plans[0].work.clusters_fraction(), 1);
  EXPECT_EQ(result.plans[0].work.selection_products(), 0);
  EXPECT_LT(result.plans[1].work.clusters_fraction(), 1);
}

TEST_P(CompareAttention, MergingDivergesAndSavesKeys) {
  const CompareResult result = compare({plan(AttentionMode::kKeys, 0.9)});
  const PlanComparison& merged = result.plans.front();
  EXPECT_GT(merged.tokens.value(metric("kl_mean")), 1e-4);
  EXPECT_GT(merged.tokens.value(metric("kl_max")), merged.tokens.value(metric("kl_mean")));
  EXPECT_LT(merged.work.keys_read_fraction(), 1);
  EXPECT_LT(merged.work.clusters_fraction(), 1);
  EXPECT_GT(merged.work.selection_products(), 0);
  EXPECT_GT(merged.work.selection_products_paper(), 0);
}

TEST_P(CompareAttention, SeveralPlansGiveWhatEachGivesAlone) {
  const std::vector<Plan> plans = {plan(AttentionMode::kKeys, 0.7), plan(AttentionMode::kCopy, 0.5),
                                   plan(AttentionMode::kPaper, 0.5)};
  const CompareResult together = compare(plans);
  for (size_t i = 0; i < plans.size(); ++i) {
    const CompareResult alone = compare({plans[i]});
    const Comparison &a = together.plans[i].tokens, &b = alone.plans.front().tokens;
    EXPECT_GT(a.value(metric("kl_mean")), 0) << i;
    EXPECT_EQ(a.value(metric("kl_mean")), b.value(metric("kl_mean"))) << i;
    EXPECT_EQ(a.value(metric("ppl")), b.value(metric("ppl"))) << i;
    EXPECT_EQ(together.plans[i].work.keys_read_fraction(),
              alone.plans.front().work.keys_read_fraction());
  }
}

TEST_P(CompareAttention, GenerationMatchesToTheEndUnlessKeysAreMerged) {
  const CompareResult result = compare(
      {plan(AttentionMode::kDense), plan(AttentionMode::kKeys, 0.9)}, {.n_predict = kContext / 2});
  EXPECT_EQ(result.plans[0].generation_match.count(), 3);  // windows
  EXPECT_EQ(result.plans[0].generation_match.mean(), kContext / 2);
  EXPECT_LT(result.plans[1].generation_match.mean(), kContext / 2);
  EXPECT_EQ(compare({plan(AttentionMode::kDense)}).plans[0].generation_match.count(), 0);
}

TEST_P(CompareAttention, GenerationIsRefusedWhereItHasNoMeaning) {
  expect_error([&] { compare({plan(AttentionMode::kPaper)}, {.n_predict = 2}); },
               {"paper", "cannot generate"});
  expect_error([&] { compare({plan(AttentionMode::kKeys)}, {.n_predict = kContext / 2 + 1}); },
               {"do not fit"});
}

TEST_P(CompareAttention, TheCacheIsWeighedInTheLastFullWindow) {
  content.resize(2 * kContext + 3);
  const CompareResult result =
      compare({plan(AttentionMode::kDense), plan(AttentionMode::kCopy, 0.9)});
  EXPECT_EQ(result.n_windows, 3);
  for (const PlanComparison& found : result.plans) {
    EXPECT_EQ(found.cache.n_tokens, kContext);
    EXPECT_EQ(found.cache.dense_bytes,
              KvCache::bytes_needed(model->spec(), DType::kF32, 1, kContext));
  }
  EXPECT_EQ(result.plans[0].cache.share_of_dense(), 1);
  EXPECT_GT(result.plans[1].cache.bytes.outputs, 0);
}

TEST_P(CompareAttention, StopsAfterTheWindowsAskedFor) {
  const CompareResult result = compare({plan(AttentionMode::kKeys)}, {.max_windows = 2});
  EXPECT_EQ(result.n_windows, 2);
  EXPECT_EQ(result.plans.front().tokens.n_tokens(), 2 * kContext);
}

INSTANTIATE_TEST_SUITE_P(All, CompareAttention,
                         testing::Values(ModelSetup{"reference", DType::kF32},
                                         ModelSetup{"cpu", DType::kF32}),
                         [](const auto& test) { return test_name_of("llama", test.param); });

}  // namespace
}  // namespace sluice::impl::test
