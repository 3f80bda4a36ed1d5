// A model whose layers are divided over ranks gives what a whole one gives, to the bit: the
// arithmetic of a layer is the same wherever it runs.

#include "model/stage.h"

#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>

#include "model/batch.h"
#include "model/load.h"
#include "model/synthetic.h"
#include "parity/compare.h"
#include "select/received.h"
#include "unit/model/byte_tokenizer.h"
#include "unit/model/divided_models.h"
#include "unit/model/full_bases.h"
#include "unit/ranks/thread_ranks.h"

namespace sluice::impl::test {
namespace {

Model stage_model(Communicator& ranks, const CheckpointPtr& checkpoint, int64_t context) {
  return Model(checkpoint, make_cpu_backend(DType::kF32),
               {.context = context,
                .progress = {},
                .weights = DType::kF32,
                .part = {.stage = balanced_stage(
                             ranks, divided_bytes(checkpoint->description, checkpoint->weights(),
                                                  {.compute = DType::kF32}))}});
}

class DividedGolden : public testing::TestWithParam<std::string> {};

TEST_P(DividedGolden, GivesTheLogitsAndTokensOfTheWholeModel) {
  GoldenModel golden = golden_model(GetParam());
  const CheckpointPtr checkpoint = open_checkpoint(golden.path());
  Model whole = whole_model(checkpoint, golden.context);
  constexpr int64_t n_tokens = 6;
  golden.prompt.resize(std::min(golden.prompt.size(),  // some fill the context
                                static_cast<size_t>(whole.context() - n_tokens)));
  const ByteTokenizer tokenizer({.vocab = static_cast<int32_t>(whole.spec().vocab)});
  const std::vector<Plan> plans = {{},
                                   {.attention = keys_plan(whole), .linear = {}},
                                   {.attention = refine_plan(whole), .linear = {}}};
  for (const Plan& plan : plans) {
    const Continuation expected = continued(whole, golden.prompt, n_tokens, plan);
    const GenerateOptions options{.n_predict = n_tokens, .ignore_eos = true, .plan = plan};
    const auto generated = [&](Model& model) {
      return generate(model, tokenizer, Prompt{.tokens = golden.prompt}, options,
                      [](std::string_view) {})
          .tokens;
    };
    const auto tokens = generated(whole);
    for (const int n_ranks : {2, 3, 4})
      on_ranks(n_ranks, [&](Communicator& ranks) {
        Model model = stage_model(ranks, checkpoint, golden.context);
        const Continuation got = continued(model, golden.prompt, n_tokens, plan);
        EXPECT_EQ(got.tokens, expected.tokens);
        if (model.has_last_layer()) {
          EXPECT_SAME_BITS(got.logits, expected.logits);
        }
        EXPECT_EQ(generated(model), tokens);
      });
  }
}
INSTANTIATE_TEST_SUITE_P(Models, DividedGolden, testing::ValuesIn(causal_models()),
                         [](const auto& test) {
                           return test_name_of(test.param, {"cpu", DType::kF32});
                         });

class DividedPlan : public testing::TestWithParam<const char*> {
 protected:
  Plan plan_for(const Model& model) const {
    const std::string name = GetParam();
    UniformAttention choice;
    choice.mode = name == "copy" ? AttentionMode::kCopy : AttentionMode::kKeys;
    choice.tau = 0.6;
    choice.window = choice.block = name == "auto" ? 128 : 16;
    choice.tau_auto = name == "auto";
    Plan plan{.attention = uniform_plan(choice, model.plan_shape()), .linear = {}};
    auto& layers = plan.attention.layers;
    if (name == "reuse") {
      for (const size_t layer : {1, 2, 3, 5, 6}) layers[layer].reuse = true;
    }
    if (name == "blocks") {  // the layer below decides more often than that above
      for (size_t layer = 0; layer < layers.size(); ++layer)
        layers[layer].window = layers[layer].block = layer % 2 == 0 ? 64 : 8;
    }
    if (name == "mixed") {
      for (const size_t layer : {2, 3, 4}) layers[layer] = LayerPlan{};
      layers[5] = refine_plan(model).layers[5];
    }
    return plan;
  }
};

TEST_P(DividedPlan, SetsThatCrossRanksAreThoseOfTheWholeModel) {
  const CheckpointPtr checkpoint = deep_llama();
  Model whole = whole_model(checkpoint, 0);
  const Plan plan = plan_for(whole);
  const std::vector<int32_t> text = repeating_tokens(330);
  const std::vector<int32_t> prompt(text.begin(), text.begin() + 300);
  const std::vector<TokenSet> sets = all_sets(whole, text, plan);
  const Continuation expected = continued(whole, prompt, 40, plan);
  for (const int n_ranks : {2, 3, 4}) {
    std::vector<std::vector<TokenSet>> of_ranks(static_cast<size_t>(n_ranks));
    on_ranks(n_ranks, [&](Communicator& ranks) {
      Model model = stage_model(ranks, checkpoint, 0);
      of_ranks[static_cast<size_t>(ranks.rank())] = all_sets(model, text, plan);
      const Continuation got = continued(model, prompt, 40, plan);
      EXPECT_EQ(got.tokens, expected.tokens);
      if (model.has_last_layer()) {
        EXPECT_SAME_BITS(got.logits, expected.logits);
      }
    });
    std::vector<TokenSet> got;
    for (const auto& some : of_ranks) got.insert(got.end(), some.begin(), some.end());
    ASSERT_EQ(got.size(), sets.size());
    for (size_t i = 0; i < sets.size(); ++i) {
      EXPECT_EQ(got[i].tau, sets[i].tau);
      EXPECT_EQ(got[i].status, sets[i].status);
      EXPECT_EQ(got[i].owner, sets[i].owner);
      EXPECT_EQ(got[i].cluster, sets[i].cluster);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Plans, DividedPlan,
                         testing::Values("keys", "auto", "copy", "reuse", "blocks", "mixed"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Divided, GatedLinearLayersAreThoseOfTheWholeModel) {
  const CheckpointPtr checkpoint = deep_llama();
  Model whole = whole_model(checkpoint, 0);
  const Bases bases = full_bases(whole.spec());
  Plan plan;
  for (int64_t layer = 0; layer < whole.spec().n_layers; ++layer) {
    LayerLinearPlan& linear = plan.linear.layers.emplace_back();
    GroupPlan& group = linear.groups[static_cast<size_t>(BasisInput::kMlpInput)];
    group.kind = LinearKind::kGsi;
    group.rank = 48;
    group.epsilon = 0.4;
  }
  whole.prepare_linear(plan.linear, &bases);
  const std::vector<int32_t> prompt = repeating_tokens(40);
  const Continuation expected = continued(whole, prompt, 8, plan);
  on_ranks(3, [&](Communicator& ranks) {
    Model model = stage_model(ranks, checkpoint, 0);
    model.prepare_linear(plan.linear, &bases);
    EXPECT_LT(model.prepared_bytes(), whole.prepared_bytes());
    const Continuation got = continued(model, prompt, 8, plan);
    EXPECT_EQ(got.tokens, expected.tokens);
    if (model.has_last_layer()) {
      EXPECT_SAME_BITS(got.logits, expected.logits);
    }
  });
}

// Groups have other heights than the whole batch, so products may round otherwise; greedy tokens of
// this random model do not depend on it (batch_test.cpp says why).
TEST(Divided, BatchesInFlightGiveTheAnswersOfTheWholeModel) {
  const CheckpointPtr checkpoint = deep_llama();
  Model whole = whole_model(checkpoint, 0);
  const DividedBatch batch(11);
  for (const Plan& plan : {Plan{}, Plan{.attention = keys_plan(whole), .linear = {}}}) {
    const auto expected = batch.answers_of(whole, 5, plan);
    EXPECT_NE(expected.back().find("600 tokens"), std::string::npos);
    for (const int64_t n_live : {1, 3, 8})
      on_ranks(3, [&](Communicator& ranks) {
        Model model = stage_model(ranks, checkpoint, 0);
        EXPECT_EQ(batch.answers_of(model, n_live, plan), expected);
      });
  }
}

// A pass sends n_tokens * d_model * 4 bytes to the next rank in one message. With sets,
// 25 bytes more and 5 to each token, in two messages. A token is sent to all other ranks.
TEST(Divided, SendsWhatTheFormulaSays) {
  const CheckpointPtr checkpoint = deep_llama();
  Model whole = whole_model(checkpoint, 0);
  for (const bool keys : {false, true}) {
    const Plan plan{.attention = keys ? keys_plan(whole) : AttentionPlan{}, .linear = {}};
    constexpr int kRanks = 4;
    on_ranks(kRanks, [&](Communicator& ranks) {
      Model model = stage_model(ranks, checkpoint, 0);
      const int64_t n_prompt = 50, n_answer = 5, n_passes = 2 + n_answer - 1;
      continued(model, repeating_tokens(n_prompt), n_answer, plan);
      const int64_t n_tokens = n_prompt + n_answer - 1;
      int64_t bytes = 0, messages = 0;
      if (model.has_last_layer()) {
        bytes = n_answer * 4 * (kRanks - 1);
        messages = n_answer * (kRanks - 1);
      } else {
        bytes = n_tokens * model.spec().d_model * 4;
        messages = n_passes;
        if (keys) {
          bytes += n_passes * (8 + 1 + 16) + n_tokens * kPackedTokenBytes;
          messages += 2 * n_passes;
        }
      }
      EXPECT_EQ(ranks.bytes_sent(), bytes);
      EXPECT_EQ(ranks.messages_sent(), messages);
    });
  }
}

TEST(Divided, FiguresOfAnAnswerAreThoseOfAllRanksTogether) {
  const CheckpointPtr checkpoint = deep_llama();
  const ByteTokenizer tokenizer({.first_byte = 32, .vocab = 64});
  Model whole = whole_model(checkpoint, 0);
  const GenerateOptions options{.n_predict = 7,
                                .plan = {.attention = keys_plan(whole), .linear = {}}};
  const auto generated = [&](Model& model) {
    return generate(model, tokenizer, Prompt{.tokens = repeating_tokens(60)}, options,
                    [](std::string_view) {});
  };
  const GenerateResult expected = generated(whole);
  on_ranks(3, [&](Communicator& ranks) {
    Model model = stage_model(ranks, checkpoint, 0);
    GenerateResult got = generated(model);
    EXPECT_LT(got.cache.dense_bytes, expected.cache.dense_bytes);
    combine(model, got);
    EXPECT_EQ(got.cache.dense_bytes, expected.cache.dense_bytes);
    EXPECT_EQ(got.cache.bytes.keys_values.exact, expected.cache.bytes.keys_values.exact);
    EXPECT_EQ(got.cache.bytes.keys_values.clusters, expected.cache.bytes.keys_values.clusters);
    EXPECT_EQ(got.linear.weight_bytes_fraction(), expected.linear.weight_bytes_fraction());
  });
}

TEST(Divided, RanksLoadTheirShareOfTheWeights) {
  const CheckpointPtr checkpoint = deep_llama();
  const int64_t all = whole_model(checkpoint, 0).weight_bytes();
  for (const int n_ranks : {1, 2, 4}) {
    std::vector<int64_t> bytes(static_cast<size_t>(n_ranks));
    on_ranks(n_ranks, [&](Communicator& ranks) {
      bytes[static_cast<size_t>(ranks.rank())] = stage_model(ranks, checkpoint, 0).weight_bytes();
    });
    EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}), all);
    const auto layer = (all - 64 * 64 * 4) / 8;
    EXPECT_LE(*std::max_element(bytes.begin(), bytes.end()), all / n_ranks + layer);
  }
}

TEST(DivideLayers, MakesTheLargestStageAsSmallAsItCanBe) {
  using Ranges = std::vector<LayerRange>;
  EXPECT_EQ(divide_layers({.layers = {1, 1, 1, 1}}, 2), (Ranges{{0, 2}, {2, 4}}));
  EXPECT_EQ(divide_layers({.layers = {1, 1, 1, 1}}, 3), (Ranges{{0, 2}, {2, 3}, {3, 4}}));
  // A head as large as two layers.
  EXPECT_EQ(divide_layers({.layers = {5, 5, 5, 5}, .first = 0, .last = 10}, 2),
            (Ranges{{0, 3}, {3, 4}}));
  EXPECT_EQ(divide_layers({.layers = {1, 1}, .first = 0, .last = 1}, 4),
            (Ranges{{0, 1}, {1, 2}, {2, 2}, {2, 2}}));
  EXPECT_EQ(divide_layers({.layers = {9, 1, 1, 1, 9}}, 3), (Ranges{{0, 1}, {1, 4}, {4, 5}}));
}

TEST(DivideByMemory, GivesLessToAStageThatHasNoMemoryForAnEqualShare) {
  using Ranges = std::vector<LayerRange>;
  const DividedBytes eight = {.layers = {10, 10, 10, 10, 10, 10, 10, 10}};
  const auto divided = [&](std::vector<int64_t> memory) { return divide_by_memory(eight, memory); };
  EXPECT_EQ(divided({40, 1000}), (Ranges{{0, 4}, {4, 8}}));  // the equal share fits
  EXPECT_EQ(divided({39, 1000}), (Ranges{{0, 0}, {0, 8}}));
  EXPECT_EQ(divided({39, 78}), (Ranges{{0, 2}, {2, 8}}));
  EXPECT_EQ(divided({60, 20}), (Ranges{{0, 6}, {6, 8}}));
  EXPECT_EQ(divided({0, 80}), (Ranges{{0, 0}, {0, 8}}));
  EXPECT_EQ(
      divide_by_memory({.layers = {10, 10}, .first = 0, .last = 30}, std::vector<int64_t>{20, 30}),
      (Ranges{{0, 2}, {2, 2}}));
}

TEST(DivideByMemory, RefusesWhatFitsNoDivision) {
  try {
    divide_by_memory({.layers = {int64_t{3} << 30, int64_t{3} << 30}},
                     std::vector<int64_t>{int64_t{4} << 30, int64_t{1} << 30});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "the weights do not fit these ranks: rank 0 would have 6.00 GiB and has memory for "
        "4.00");
  }
}

TEST(DividedBytes, AreThoseOfTheTypeInMemory) {
  const auto checkpoint = synthetic_checkpoint(ConfigReader(nlohmann::json{{"model_type", "gpt2"},
                                                                           {"n_layer", 2},
                                                                           {"n_embd", 64},
                                                                           {"n_head", 2},
                                                                           {"n_positions", 16},
                                                                           {"vocab_size", 64}},
                                                            "test"));
  const auto layer = [&](const PackedType& type) {
    return divided_bytes(checkpoint->description, checkpoint->weights(), type).layers.front();
  };
  const int64_t n = 12 * 64 * 64;  // numbers of a layer's matrices
  EXPECT_EQ(layer({.compute = DType::kF32}), 4 * n);
  EXPECT_EQ(layer({.compute = DType::kBF16}), 2 * n);
  EXPECT_EQ(layer({.compute = DType::kBF16, .weights = DType::kQ8_0}), n / 32 * 34);
  // 64 columns are no block of Q4_K: those matrices are in Q8_0; the last one of the MLP has 256.
  EXPECT_EQ(layer({.compute = DType::kBF16, .weights = DType::kQ4_K}),
            8 * 64 * 64 / 32 * 34 + 4 * 64 * 64 / 256 * 144);
}

}  // namespace
}  // namespace sluice::impl::test
