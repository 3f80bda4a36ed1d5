// What ranks of a model that is divided by width have, and what they send.

#include <gtest/gtest.h>

#include "model/generate.h"
#include "unit/model/byte_tokenizer.h"
#include "unit/model/full_bases.h"
#include "unit/model/tensor_models.h"

namespace sluice::impl::test {
namespace {

// A layer sends rows of n_tokens * d_model * 4 bytes to each other rank, twice. Scores go to the
// last rank, a token from it to all others. Sets are not sent.
TEST(TensorShares, SendWhatTheFormulaSays) {
  const CheckpointPtr checkpoint = deep_llama(4);
  Model whole = loaded(checkpoint, {});
  for (const bool keys : {false, true}) {
    const Plan plan{.attention = keys ? keys_plan(whole) : AttentionPlan{}, .linear = {}};
    constexpr int kRanks = 4;
    on_ranks(kRanks, [&](Communicator& ranks) {
      Model model = loaded(checkpoint, {}, &ranks);
      const ModelSpec& spec = model.spec();
      const int64_t n_prompt = 50, n_answer = 5, n_passes = 2 + n_answer - 1;
      continued(model, repeating_tokens(n_prompt), n_answer, plan);
      const int64_t n_tokens = n_prompt + n_answer - 1;
      int64_t bytes = spec.n_layers * 2 * n_tokens * spec.d_model * 4 * (kRanks - 1);
      int64_t messages = spec.n_layers * 2 * n_passes * (kRanks - 1);
      bytes += n_answer * 4 * (model.chooses() ? kRanks - 1 : spec.vocab / kRanks);
      messages += n_answer * (model.chooses() ? kRanks - 1 : 1);
      EXPECT_EQ(ranks.bytes_sent(), bytes);
      EXPECT_EQ(ranks.messages_sent(), messages);
    });
  }
}

// Above 64 KiB every rank adds a slice for all: the rows travel twice, however many ranks there
// are.
TEST(TensorShares, SendLargeSumsInSlices) {
  const CheckpointPtr checkpoint = deep_llama(4);
  constexpr int kRanks = 4;
  on_ranks(kRanks, [&](Communicator& ranks) {
    Model model = loaded(checkpoint, {}, &ranks);
    const int64_t n_tokens = 300, n_layers = model.spec().n_layers;  // 75 KiB
    KvCache cache = model.make_cache();
    model.forward(repeating_tokens(n_tokens), cache);
    EXPECT_EQ(ranks.bytes_sent(),
              n_layers * 2 * 2 * (kRanks - 1) * (n_tokens * model.spec().d_model * 4 / kRanks));
    EXPECT_EQ(ranks.messages_sent(), n_layers * 2 * 2 * (kRanks - 1));
  });
}

// In place of the MLP's sum, its inner activations and the rows of its product are gathered.
TEST(TensorShares, GatedProductsSendWhatTheFormulaSays) {
  const CheckpointPtr checkpoint = deep_llama(4);
  const ModelSpec& spec = checkpoint->spec();
  LinearPlan plan;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    plan.layers.emplace_back().of(BasisInput::kMlpInner) = {
        .kind = LinearKind::kGsi, .rank = 48, .epsilon = 0.4};
  const Bases bases = full_bases(spec);
  on_ranks(2, [&](Communicator& ranks) {
    Model model = loaded(checkpoint, {}, &ranks);
    model.prepare_linear(plan, &bases);
    KvCache cache = model.make_cache(1, 0, {}, plan);
    model.forward(std::vector<int32_t>{1, 2, 3}, cache);
    const int64_t sum = 3 * spec.d_model * 4;
    const int64_t inputs = 8 + 3 * spec.d_inner / 2 * 4, outputs = 8 + 3 * spec.d_model / 2 * 4;
    EXPECT_EQ(ranks.bytes_sent(), spec.n_layers * (sum + inputs + outputs));
    EXPECT_EQ(ranks.messages_sent(), spec.n_layers * (1 + 2 + 2));
  });
}

TEST(TensorShares, ParallelBlocksSumOnce) {
  for (const char* name : {"models/gptj", "models/gpt-neox"}) {
    const GoldenModel golden = golden_model(name);
    const CheckpointPtr checkpoint = open_checkpoint(golden.path());
    on_ranks(2, [&](Communicator& ranks) {
      Model model = loaded(checkpoint, {.context = golden.context}, &ranks);
      KvCache cache = model.make_cache();
      model.forward(std::vector<int32_t>{1, 2, 3}, cache);
      EXPECT_EQ(ranks.messages_sent(), model.spec().n_layers);
      EXPECT_EQ(ranks.bytes_sent(), model.spec().n_layers * 3 * model.spec().d_model * 4);
    });
  }
}

TEST(TensorShares, FiguresOfAnAnswerAreThoseOfAllRanksTogether) {
  const CheckpointPtr checkpoint = deep_llama(4);
  const ByteTokenizer tokenizer({.first_byte = 32, .vocab = 64});
  Model whole = loaded(checkpoint, {});
  const GenerateOptions options{.n_predict = 7,
                                .plan = {.attention = keys_plan(whole), .linear = {}}};
  const auto generated = [&](Model& model) {
    return generate(model, tokenizer, Prompt{.tokens = repeating_tokens(60)}, options,
                    [](std::string_view) {});
  };
  const GenerateResult expected = generated(whole);
  on_ranks(3, [&](Communicator& ranks) {
    Model model = loaded(checkpoint, {}, &ranks);
    GenerateResult got = generated(model);
    EXPECT_EQ(got.tokens, expected.tokens);
    EXPECT_LT(got.cache.dense_bytes, expected.cache.dense_bytes);
    combine(model, got);
    EXPECT_EQ(got.cache.dense_bytes, expected.cache.dense_bytes);
    EXPECT_EQ(got.cache.bytes.keys_values.exact, expected.cache.bytes.keys_values.exact);
    EXPECT_EQ(got.cache.bytes.keys_values.clusters, expected.cache.bytes.keys_values.clusters);
    EXPECT_EQ(got.linear.weight_bytes_fraction(), expected.linear.weight_bytes_fraction());
  });
}

TEST(TensorShares, RanksLoadTheirShareOfTheWeights) {
  const CheckpointPtr checkpoint = deep_llama(4);
  const int64_t all = loaded(checkpoint, {}).weight_bytes();
  for (const int n_ranks : {1, 2, 4}) {
    std::vector<int64_t> bytes(static_cast<size_t>(n_ranks));
    on_ranks(n_ranks, [&](Communicator& ranks) {
      bytes[static_cast<size_t>(ranks.rank())] = loaded(checkpoint, {}, &ranks).weight_bytes();
    });
    for (const int64_t share : bytes) EXPECT_EQ(share, all / n_ranks);
  }
}

}  // namespace
}  // namespace sluice::impl::test
