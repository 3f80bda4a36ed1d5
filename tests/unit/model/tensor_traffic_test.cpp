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

// Every rank has all gates and selectors, but these count as in one process.
class TensorFigures : public testing::TestWithParam<const char*> {
 protected:
  static UniformLinear linear_of(const std::string& name) {
    if (name == "graded") return {.kind = LinearKind::kGraded, .epsilon = 0.4};
    return {.kind = LinearKind::kGsi,
            .rank = 48,
            .epsilon = 0.4,
            .adaptive = name == "adaptive" ? 4 : 0};
  }
};

void expect_equal(const GroupWork& got, const GroupWork& expected) {
  EXPECT_EQ(got.layer, expected.layer);
  EXPECT_EQ(got.input, expected.input);
  EXPECT_EQ(got.n_in, expected.n_in);
  EXPECT_EQ(got.counts.n_tokens, expected.counts.n_tokens);
  EXPECT_EQ(got.counts.n_fast, expected.counts.n_fast);
  EXPECT_EQ(got.counts.n_bypassed, expected.counts.n_bypassed);
  EXPECT_EQ(got.counts.n_kept, expected.counts.n_kept);
  EXPECT_EQ(got.counts.n_additions, expected.counts.n_additions);
  EXPECT_EQ(got.counts.elements, expected.counts.elements);
  EXPECT_EQ(got.counts.dense_elements, expected.counts.dense_elements);
  EXPECT_EQ(got.counts.residuals.count(), expected.counts.residuals.count());
}

// What a plan has nothing of would be equal however it is added up.
void expect_some(const std::string& name, const GenerateResult& result) {
  LinearCounts all;
  for (const GroupWork& group : result.linear.groups()) all += group.counts;
  EXPECT_GT(result.cache.bytes.selection_rows, 0);
  EXPECT_LT(all.elements, 1.5 * all.dense_elements);
  if (name == "graded") return;
  EXPECT_GT(all.n_fast, 0);
  EXPECT_GT(all.n_bypassed, 0);
  if (name == "adaptive") {
    EXPECT_GT(all.n_additions, 0);
  }
}

TEST_P(TensorFigures, OfAllRanksAreThoseOfOneProcess) {
  const CheckpointPtr checkpoint = deep_llama(4);
  const ByteTokenizer tokenizer({.first_byte = 32, .vocab = 64});
  Model whole = loaded(checkpoint, {});
  const Bases bases = full_bases(whole.spec());
  for (const AttentionPlan& attention : {keys_plan(whole), copy_plan(whole)}) {
    const GenerateOptions options{
        .n_predict = 7,
        .plan = {.attention = attention,
                 .linear = uniform_linear_plan(linear_of(GetParam()), whole.linear_shape())}};
    const auto generated = [&](Model& model) {
      model.prepare_linear(options.plan.linear, &bases);
      return generate(model, tokenizer, Prompt{.tokens = repeating_tokens(140)}, options,
                      [](std::string_view) {});
    };
    const GenerateResult expected = generated(whole);
    expect_some(GetParam(), expected);
    on_ranks(3, [&](Communicator& ranks) {
      Model model = loaded(checkpoint, {}, &ranks);
      GenerateResult got = generated(model);
      EXPECT_EQ(got.tokens, expected.tokens);
      EXPECT_LT(got.cache.dense_bytes, expected.cache.dense_bytes);
      combine(model, got);
      EXPECT_EQ(got.cache.dense_bytes, expected.cache.dense_bytes);
      EXPECT_EQ(got.cache.bytes.keys_values.exact, expected.cache.bytes.keys_values.exact);
      if (expected.cache.bytes.outputs == 0) {  // those of `copy` are counts, on each rank
        EXPECT_EQ(got.cache.bytes.keys_values.clusters, expected.cache.bytes.keys_values.clusters);
      }
      EXPECT_EQ(got.cache.bytes.selection_rows, expected.cache.bytes.selection_rows);
      EXPECT_EQ(got.cache.bytes.outputs, expected.cache.bytes.outputs);
      EXPECT_EQ(got.linear.weight_bytes_fraction(), expected.linear.weight_bytes_fraction());
      ASSERT_EQ(got.linear.groups().size(), expected.linear.groups().size());
      for (size_t i = 0; i < got.linear.groups().size(); ++i)
        expect_equal(got.linear.groups()[i], expected.linear.groups()[i]);
    });
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, TensorFigures, testing::Values("gsi", "adaptive", "graded"),
                         [](const auto& test) { return std::string(test.param); });

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
