// Texts generated together are those generated one after the other.
//
// Compared are tokens of greedy answers in f32. Logits differ by round-off, since products over
// more rows sum in another order: up to 5e-6 of their range (chunks_test.cpp). A token could differ
// where the two likeliest are closer than that. It does not happen on these random models, whose
// logits are unlike; with the reference, which computes every row alone, it cannot.

#include "model/batch.h"

#include "parity/compare.h"
#include "unit/model/byte_tokenizer.h"
#include "unit/model/family_models.h"
#include "unit/model/full_bases.h"

namespace sluice::impl::test {
namespace {

constexpr int64_t kPrompts = 16;

// Lengths from one token to nearly the context, in no order.
std::vector<std::string> prompts_of(int64_t context) {
  std::vector<std::string> prompts;
  for (int64_t i = 0; i < kPrompts; ++i) {
    const int64_t order = i * 7 % kPrompts;
    std::string text;
    for (const int32_t token :
         repeating_tokens(1 + order * (context - 40) / kPrompts, static_cast<uint32_t>(i + 1)))
      text += static_cast<char>(32 + token);
    prompts.push_back(text);
  }
  return prompts;
}

struct Answers {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::string> texts;
  std::vector<GenerateResult::End> ends;
};

class BatchTest : public FamilyTest {
 protected:
  void SetUp() override {
    FamilyTest::SetUp();
    if (model) prompts = prompts_of(model->context());
  }
  // Answers end after a number of tokens of their own.
  static bool goes_on(int64_t index, int64_t n_tokens) { return n_tokens <= index * 5 % 13; }

  Answers together(const Plan& plan, int64_t n_live) {
    Answers answers{std::vector<std::vector<int32_t>>(prompts.size()),
                    std::vector<std::string>(prompts.size()),
                    std::vector<GenerateResult::End>(prompts.size())};
    std::vector<BatchPrompt> list;
    for (const std::string& text : prompts) list.push_back({.text = text});
    std::vector<int64_t> n_tokens(prompts.size());
    std::vector<int> n_done(prompts.size());
    const BatchEvents events{.token =
                                 [&](int64_t index, int32_t, std::string_view) {
                                   return goes_on(index, ++n_tokens[static_cast<size_t>(index)]);
                                 },
                             .done =
                                 [&](int64_t index, BatchAnswer answer) {
                                   const auto i = static_cast<size_t>(index);
                                   EXPECT_FALSE(answer.error.has_value()) << answer.error->what();
                                   EXPECT_EQ(answer.result.n_prompt, std::ssize(prompts[i]));
                                   ++n_done[i];
                                   answers.tokens[i] = std::move(answer.result.tokens);
                                   answers.texts[i] = std::move(answer.text);
                                   answers.ends[i] = answer.result.end;
                                 }};
    generate_batch(*model, tokenizer, list, options(plan), n_live, events);
    EXPECT_EQ(n_done, std::vector<int>(prompts.size(), 1));
    return answers;
  }

  Answers one_by_one(const Plan& plan) {
    Answers answers;
    for (size_t i = 0; i < prompts.size(); ++i) {
      GenerateOptions own = options(plan);
      int64_t n_tokens = 0;
      own.go_on = [&](int32_t) { return goes_on(static_cast<int64_t>(i), ++n_tokens); };
      std::string text;
      GenerateResult result = generate(*model, tokenizer, prompts[i], own,
                                       [&](std::string_view piece) { text += piece; });
      answers.tokens.push_back(std::move(result.tokens));
      answers.texts.push_back(std::move(text));
      answers.ends.push_back(result.end);
    }
    return answers;
  }

  void expect_same(const Plan& plan) {
    const Answers expected = one_by_one(plan);
    for (const int64_t n_live : {int64_t{5}, kPrompts}) {
      const Answers got = together(plan, n_live);
      EXPECT_EQ(got.tokens, expected.tokens) << n_live << " live";
      EXPECT_EQ(got.texts, expected.texts) << n_live << " live";
      EXPECT_EQ(got.ends, expected.ends) << n_live << " live";
    }
  }

  static GenerateOptions options(const Plan& plan) {
    GenerateOptions options{.n_predict = 10, .sampler = {}, .stop = {}, .ignore_eos = true};
    options.plan = plan;
    return options;
  }
  Plan attention(AttentionMode mode) {
    UniformAttention choice;
    choice.mode = mode;
    choice.tau = family().tau;
    choice.window = 32;
    return {.attention = uniform_plan(choice, model->plan_shape()), .linear = {}};
  }

  const ByteTokenizer tokenizer{{.first_byte = 32, .vocab = 64, .bos = {}, .eos = {}}};
  std::vector<std::string> prompts;
};

TEST_P(BatchTest, DenseAnswersAreThoseOfSingleRuns) { expect_same({}); }

TEST_P(BatchTest, AnswersOnClustersAreThoseOfSingleRuns) {
  expect_same(attention(AttentionMode::kKeys));
}

TEST_P(BatchTest, RefinedAnswersAreThoseOfSingleRuns) {
  expect_same(attention(AttentionMode::kRefine));
}

TEST_P(BatchTest, AnswersOfAnInt8CacheAreThoseOfSingleRuns) {
  if (setup().on_device()) GTEST_SKIP() << "this device has no such cache";
  UniformAttention choice;
  choice.cache = CacheKind::kInt8;
  expect_same({.attention = uniform_plan(choice, model->plan_shape()), .linear = {}});
}

TEST_P(BatchTest, CopiedAnswersAreThoseOfSingleRuns) {
  expect_same(attention(AttentionMode::kCopy));
}

TEST_P(BatchTest, AnswersOfGatedLayersAreThoseOfSingleRuns) {
  const Bases bases = full_bases(model->spec());
  Plan plan;
  plan.linear.layers.resize(static_cast<size_t>(model->spec().n_layers));
  for (LayerLinearPlan& layer : plan.linear.layers)
    for (const BasisInput input : kLinearInputs)
      layer.of(input) = {.kind = LinearKind::kGsi,
                         .rank = model->spec().row_widths().of(input) / 2,
                         .epsilon = 0.7,
                         .adaptive = 0};
  model->prepare_linear(plan.linear, &bases);
  expect_same(plan);
}

// Tokens of a random model say little of attention. Hidden states do: those of prompts of different
// lengths and of tokens after them, in ragged passes, against the same passes of each text alone.
// The bound is that of chunks_test.cpp: products of another height may sum in another order. Our
// own kernels on Arm gave the same bits.
TEST_P(BatchTest, HiddenStatesAreThoseOfSequencesAlone) {
  for (const AttentionMode mode : {AttentionMode::kDense, AttentionMode::kKeys,
                                   AttentionMode::kRefine, AttentionMode::kCopy}) {
    const AttentionPlan plan =
        mode == AttentionMode::kDense ? AttentionPlan{} : attention(mode).attention;
    const int64_t n = model->context() - 8;
    std::vector<std::vector<int32_t>> texts;
    std::vector<KvCache> caches;
    std::vector<std::vector<float>> together(3), alone(3);
    for (size_t i = 0; i < 3; ++i) {
      texts.push_back(repeating_tokens(n, static_cast<uint32_t>(i + 1)));
      caches.push_back(model->make_cache(1, n, plan));
    }
    const std::vector<std::vector<int64_t>> passes = {{n / 2, 1, 40}, {1, n / 3, 1}, {1, 1, n / 4},
                                                      {1, 1, 1},      {30, 1, 1},    {1, 1, 1}};
    for (const auto& lengths : passes) {
      std::vector<SequenceTokens> batch;
      for (size_t i = 0; i < 3; ++i)
        batch.push_back({std::span(texts[i]).subspan(static_cast<size_t>(caches[i].length()),
                                                     static_cast<size_t>(lengths[i])),
                         &caches[i]});
      const std::vector<float> rows = floats_of(model->backend(), model->forward_ragged(batch));
      auto next = rows.begin();
      for (size_t i = 0; i < 3; ++i) {
        const auto end = next + lengths[i] * model->spec().d_model;
        together[i].insert(together[i].end(), next, end);
        next = end;
      }
    }
    for (size_t i = 0; i < 3; ++i) {
      KvCache cache = model->make_cache(1, n, plan);
      for (const auto& lengths : passes) {
        const auto part = hidden_of(*model,
                                    std::span(texts[i]).subspan(static_cast<size_t>(cache.length()),
                                                                static_cast<size_t>(lengths[i])),
                                    cache);
        alone[i].insert(alone[i].end(), part.begin(), part.end());
      }
      SCOPED_TRACE(testing::Message() << "mode " << static_cast<int>(mode) << ", sequence " << i);
      EXPECT_CLOSE(together[i], alone[i], 5e-6 * range_of(alone[i]));
    }
  }
}

// Every other prompt is dense, in the same passes.
TEST_P(BatchTest, PlansMayDifferBetweenPrompts) {
  const Plan plan = attention(AttentionMode::kKeys);
  const Answers exact = one_by_one({}), planned = one_by_one(plan);
  std::vector<BatchPrompt> list;
  for (size_t i = 0; i < prompts.size(); ++i)
    list.push_back({.text = prompts[i], .dense = i % 2 == 0});
  std::vector<int64_t> n_tokens(prompts.size());
  generate_batch(*model, tokenizer, list, options(plan), kPrompts,
                 {.token =
                      [&](int64_t index, int32_t, std::string_view) {
                        return goes_on(index, ++n_tokens[static_cast<size_t>(index)]);
                      },
                  .done =
                      [&](int64_t index, BatchAnswer answer) {
                        const auto i = static_cast<size_t>(index);
                        EXPECT_EQ(answer.result.tokens, (i % 2 == 0 ? exact : planned).tokens[i])
                            << index;
                      }});
}

TEST_P(BatchTest, APromptThatDoesNotFitFailsAlone) {
  const std::string too_long(static_cast<size_t>(model->context()), 'A');
  const std::vector<BatchPrompt> list = {
      {.text = prompts[0]}, {.text = too_long}, {.text = prompts[1]}};
  std::vector<std::optional<Error>> errors(list.size());
  std::vector<size_t> n_tokens(list.size());
  generate_batch(*model, tokenizer, list, options({}), 2,
                 {.token = {}, .done = [&](int64_t index, BatchAnswer answer) {
                    errors[static_cast<size_t>(index)] = answer.error;
                    n_tokens[static_cast<size_t>(index)] = answer.result.tokens.size();
                  }});
  EXPECT_FALSE(errors[0] || errors[2]);
  ASSERT_TRUE(errors[1]);
  EXPECT_NE(std::string(errors[1]->what()).find("the context is"), std::string::npos);
  EXPECT_EQ(n_tokens, (std::vector<size_t>{10, 0, 10}));
}

// The longest prompt takes several passes next to the answers of the others.
std::vector<FamilyCase> batch_families() {
  std::vector<FamilyCase> cases;
  for (const FamilyCase& c : family_cases())
    if (std::string_view(c.name) == "gpt2_64" || std::string_view(c.name) == "llama_16")
      cases.push_back(c);
  cases.back().config["max_position_embeddings"] = 1500;
  return cases;
}

// The reference would take minutes.
std::vector<ModelSetup> batch_setups() {
  std::vector<ModelSetup> setups = family_setups();
  std::erase_if(setups,
                [](const ModelSetup& s) { return s.is_reference() || s.dtype != DType::kF32; });
  return setups;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BatchTest);  // where only bf16 is run
INSTANTIATE_TEST_SUITE_P(All, BatchTest,
                         testing::Combine(testing::ValuesIn(batch_families()),
                                          testing::ValuesIn(batch_setups())),
                         family_test_name);

}  // namespace
}  // namespace sluice::impl::test
