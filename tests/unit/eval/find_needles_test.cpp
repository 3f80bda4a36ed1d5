// Whether answers are found, against one pass over the whole prompt.

#include "eval/needle/find_needles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "unit/model/byte_tokenizer.h"
#include "unit/model/golden_models.h"

namespace sluice::impl::test {
namespace {

constexpr size_t kPrompt = 20, kAnswer = 5;

class FindNeedles : public testing::TestWithParam<ModelSetup> {
 protected:
  FindNeedles() : model(load(golden_model("models/gpt2"), GetParam())) {}

  std::vector<float> logits(const std::vector<int32_t>& tokens) {
    KvCache cache = model.make_cache();
    return logits_of(model, tokens, cache);
  }
  size_t vocab() const { return static_cast<size_t>(model.spec().vocab); }

  // A prompt whose answer is what the model itself goes on with.
  NeedleCase answered_case() {
    NeedleCase found;
    found.options.context = kPrompt + kAnswer;
    found.prompt.n_prompt = kPrompt;
    std::vector<int32_t>& tokens = found.prompt.tokens;
    for (size_t i = 0; i < kPrompt; ++i) tokens.push_back(static_cast<int32_t>(i * 7 % vocab()));
    while (tokens.size() < kPrompt + kAnswer) {
      const std::vector<float> scores = logits(tokens);
      const auto last = scores.end() - static_cast<int64_t>(vocab());
      tokens.push_back(static_cast<int32_t>(std::max_element(last, scores.end()) - last));
    }
    return found;
  }
  double plain_logp(const std::vector<int32_t>& tokens) {
    const std::vector<float> scores = logits(tokens);
    double logp = 0;
    for (size_t next = kPrompt; next < tokens.size(); ++next) {
      const float* row = scores.data() + (next - 1) * vocab();
      double total = 0;
      for (size_t i = 0; i < vocab(); ++i) total += std::exp(double{row[i]});
      logp += double{row[tokens[next]]} - std::log(total);
    }
    return logp;
  }

  Model model;
};

TEST_P(FindNeedles, AnAnswerIsFoundWhereEachOfItsTokensIsTheLikeliest) {
  std::vector<NeedleCase> cases(kAnswer + 1, answered_case());
  for (size_t i = 0; i < kAnswer; ++i) {
    int32_t& token = cases[i].prompt.tokens[kPrompt + i];
    token = (token + 1) % static_cast<int32_t>(vocab());
  }
  std::vector<double> shares;
  find_needles(model, std::vector<Plan>(2), cases,
               [&](double done, std::span<const NeedleCase> so_far) {
                 shares.push_back(done);
                 EXPECT_EQ(so_far.size(), shares.size());
               });
  EXPECT_EQ(shares.size(), cases.size());
  EXPECT_EQ(shares.back(), 1);
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(cases[i].dense.found, i == kAnswer) << i;
    // One pass and steps of one token differ by the round-off of sums over 32 products.
    EXPECT_NEAR(cases[i].dense.logp, plain_logp(cases[i].prompt.tokens), 1e-4) << i;
    ASSERT_EQ(cases[i].runs.size(), 2u);
    for (const NeedleFind& run : cases[i].runs) {
      EXPECT_EQ(run.found, cases[i].dense.found);
      EXPECT_EQ(run.logp, cases[i].dense.logp);  // plans without layers are dense
    }
  }
}

TEST_P(FindNeedles, RefusesAttentionThatSeesTheFuture) {
  std::vector<NeedleCase> cases{answered_case()};
  UniformAttention choice;
  choice.mode = AttentionMode::kPaper;
  const Plan paper{.attention = uniform_plan(choice, model.plan_shape())};
  EXPECT_THROW(find_needles(model, std::vector{paper}, cases, {}), Error);
}

// f32 alone: in bf16 steps may find another token likeliest than the pass that made the answer.
INSTANTIATE_TEST_SUITE_P(All, FindNeedles,
                         testing::Values(ModelSetup{"reference", DType::kF32},
                                         ModelSetup{"cpu", DType::kF32}),
                         [](const auto& param) { return test_name_of("gpt2", param.param); });

TEST(NeedleCases, HaveEachLengthAndDepthWithSeedsOfTheirOwn) {
  const ByteTokenizer tokenizer{{}};
  std::vector<int32_t> text;
  for (int32_t i = 0; i < 1000; ++i) text.push_back('a' + i / 300);
  const auto cases = make_needle_cases(
      tokenizer, text, {.contexts = {300, 900}, .n_depths = 2, .n_cases = 2, .seed = 5});
  ASSERT_EQ(cases.size(), 8u);
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(cases[i].options.context, i < 4 ? 300 : 900);
    EXPECT_EQ(cases[i].options.depth, i % 4 < 2 ? 0.25 : 0.75);
    EXPECT_EQ(cases[i].options.seed, 5 + i);
    EXPECT_EQ(std::ssize(cases[i].prompt.tokens), cases[i].options.context);
    // Three stretches of 300 tokens in rotation, one of 900.
    EXPECT_EQ(cases[i].prompt.tokens[0], 'a' + (i < 4 ? static_cast<int32_t>(i % 3) : 0)) << i;
  }
  EXPECT_THROW(make_needle_cases(tokenizer, text, {.contexts = {2000}}), Error);
}

TEST(NeedleCases, AreOneDocumentEach) {
  constexpr int32_t kFirst = 256;
  const ByteTokenizer tokenizer{{.first_byte = 0, .vocab = 256, .bos = kFirst, .eos = {}}};
  std::vector<int32_t> text(1000, 'x');
  for (const size_t start : {0, 250, 600}) text[start] = kFirst;
  for (const NeedleCase& made :
       make_needle_cases(tokenizer, text, {.contexts = {400}, .n_depths = 4})) {
    const std::vector<int32_t>& tokens = made.prompt.tokens;
    EXPECT_EQ(tokens[0], kFirst);
    EXPECT_EQ(std::count(tokens.begin(), tokens.end(), kFirst), 1);
  }
}

TEST(NeedleSummary, CountsAsLostWhatDenseAloneFinds) {
  std::vector<NeedleCase> cases(4);
  for (size_t i = 0; i < cases.size(); ++i) {
    cases[i].dense.found = i < 2;
    cases[i].runs = {{.found = i % 2 == 0}, {.found = true}};
  }
  const NeedleSummary some = summarise_needles(cases, 0), all = summarise_needles(cases, 1);
  EXPECT_EQ(some.n_cases, 4);
  EXPECT_EQ(some.n_dense_found, 2);
  EXPECT_EQ(some.n_found, 2);
  EXPECT_EQ(some.lost, std::vector<const NeedleCase*>{&cases[1]});
  EXPECT_EQ(all.n_found, 4);
  EXPECT_TRUE(all.lost.empty());
}

TEST(FoundShare, HasABinomialError) {
  EXPECT_EQ(found_share(0, 0).standard_error, 0);
  EXPECT_EQ(found_share(4, 4).share, 1);
  EXPECT_EQ(found_share(4, 4).standard_error, 0);
  EXPECT_EQ(found_share(1, 4).share, 0.25);
  EXPECT_DOUBLE_EQ(found_share(1, 4).standard_error, std::sqrt(0.25 * 0.75 / 4));
}

}  // namespace
}  // namespace sluice::impl::test
