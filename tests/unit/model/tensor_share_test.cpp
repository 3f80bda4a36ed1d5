// A model whose layers are divided over ranks by width gives what a whole one gives, up to
// round-off: sums over heads and inner columns are taken in another order.

#include "model/tensor_share.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "unit/model/full_bases.h"
#include "unit/model/tensor_models.h"

namespace sluice::impl::test {
namespace {

// The largest difference of logits, of their range.
double distance(const Continuation& a, const Continuation& b) {
  SLUICE_CHECK(a.logits.size() == b.logits.size());
  double worst = 0;
  for (size_t i = 0; i < a.logits.size(); ++i)
    worst = std::max(worst, std::abs(double{a.logits[i]} - b.logits[i]));
  return worst / range_of(b.logits);
}

// f32: what model_golden_test allows, where sums have another order too.
constexpr double kAllowed = 2e-5;

void expect_near(const Continuation& got, const Continuation& expected, const Model& model,
                 double allowed = kAllowed) {
  EXPECT_EQ(got.tokens, expected.tokens);
  if (model.chooses()) {
    EXPECT_LE(distance(got, expected), allowed);
  }
}

// On every number of these ranks for which there are heads; says so where there is none.
void compare(const CheckpointPtr& checkpoint, const Loading& how, std::vector<int32_t> prompt,
             const std::vector<Plan>& plans, double allowed = kAllowed) {
  Model whole = loaded(checkpoint, how);
  if (whole.spec().n_kv_heads < 2) GTEST_SKIP() << "one key head cannot be divided";
  constexpr int64_t n_tokens = 6;
  prompt.resize(std::min(prompt.size(),  // some fill the context
                         static_cast<size_t>(whole.context() - n_tokens)));
  for (const Plan& plan : plans) {
    const Continuation expected = continued(whole, prompt, n_tokens, plan);
    for (const int n_ranks : {2, 3, 4}) {
      if (n_ranks > whole.spec().n_kv_heads) continue;
      on_ranks(n_ranks, [&](Communicator& ranks) {
        Model model = loaded(checkpoint, how, &ranks);
        expect_near(continued(model, prompt, n_tokens, plan), expected, model, allowed);
      });
    }
  }
}

class TensorGolden : public testing::TestWithParam<std::string> {};

TEST_P(TensorGolden, GivesTheLogitsAndTokensOfTheWholeModel) {
  const GoldenModel golden = golden_model(GetParam());
  const CheckpointPtr checkpoint = open_checkpoint(golden.path());
  const Loading how{.context = golden.context};
  const Model whole = loaded(checkpoint, how);
  compare(checkpoint, how, golden.prompt,
          {{},
           {.attention = keys_plan(whole), .linear = {}},
           {.attention = copy_plan(whole), .linear = {}},
           {.attention = refine_plan(whole), .linear = {}}});
}
INSTANTIATE_TEST_SUITE_P(Models, TensorGolden, testing::ValuesIn(causal_models()),
                         [](const auto& test) {
                           return test_name_of(test.param, {"cpu", DType::kF32});
                         });

// Two runs whose activations are rounded at values that differ by round-off: see "Numbers" in
// docs/architecture.md.
TEST(TensorShares, OfBf16GiveTheTokensOfTheWholeModel) {
  const GoldenModel golden = golden_model("models/llama");
  const CheckpointPtr checkpoint = open_checkpoint(golden.path());
  const auto n_layers = static_cast<double>(checkpoint->spec().n_layers);
  compare(checkpoint, {.dtype = DType::kBF16, .weights = DType::kBF16}, golden.prompt, {{}},
          std::sqrt(2.0) * 3 * 0x1p-9 * std::sqrt(10 * n_layers + 2));
}

// How far rounding moves the logits of a whole model: what is rounded to 8 bits may differ by
// round-off and so by a step, but not every value does.
double moved(const CheckpointPtr& checkpoint, const Loading& how, const Loading& unrounded,
             const std::vector<int32_t>& prompt, const Plan& plan, const Plan& exact) {
  Model rounding = loaded(checkpoint, how), plain = loaded(checkpoint, unrounded);
  return distance(continued(rounding, prompt, 1, plan), continued(plain, prompt, 1, exact));
}

class TensorBlocks : public testing::TestWithParam<DType> {};

TEST_P(TensorBlocks, MadeWhileLoadingGiveTheTokensOfTheWholeModel) {
  const CheckpointPtr checkpoint = deep_llama();  // 32 columns of attention's output to a key head
  const std::vector<int32_t> prompt = repeating_tokens(7);
  const Loading how{.weights = GetParam()}, expanded{.weights = GetParam(), .expanded = true};
  compare(checkpoint, how, prompt, {{}}, moved(checkpoint, how, expanded, prompt, {}, {}));
}
INSTANTIATE_TEST_SUITE_P(Types, TensorBlocks, testing::Values(DType::kQ8_0, DType::kQ4_0),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

class TensorStored : public testing::TestWithParam<std::string> {};

// Where a border of heads cuts a block, the matrix is expanded. Passes of more than eight rows do
// not round their inputs in f32, so that it makes no difference to them.
TEST_P(TensorStored, BlocksGiveTheLogitsOfTheWholeModel) {
  const CheckpointPtr checkpoint = open_checkpoint(golden_model(GetParam()).path());
  const Loading how{.context = 32, .weights = {}};
  Model whole = loaded(checkpoint, how);
  const std::vector<int32_t> prompt = repeating_tokens(30);
  const Continuation expected = continued(whole, prompt, 1, {});
  std::array<int64_t, 2> bytes{};
  on_ranks(2, [&](Communicator& ranks) {
    Model model = loaded(checkpoint, how, &ranks);
    expect_near(continued(model, prompt, 1, {}), expected, model);
    bytes[static_cast<size_t>(ranks.rank())] = model.weight_bytes();
  });
  // Expanded ones take four times the bytes of q8_0 and are the fewest.
  EXPECT_GE(bytes[0] + bytes[1], whole.weight_bytes());
  EXPECT_LT(bytes[0] + bytes[1], 2 * whole.weight_bytes());
}
INSTANTIATE_TEST_SUITE_P(Models, TensorStored,
                         testing::Values("gguf/llama-q8_0.gguf", "gguf/gpt2-q4_0.gguf",
                                         "gguf/llama-mixed.gguf", "gguf/phi3-q8_0.gguf"),
                         [](const auto& test) {
                           return test_name_of(test.param, {"cpu", DType::kF32});
                         });

TEST(TensorShares, WithInt8CachesGiveTheTokensOfTheWholeModel) {
  const CheckpointPtr checkpoint = deep_llama(4);
  const std::vector<int32_t> prompt = repeating_tokens(40);
  UniformAttention choice;
  choice.cache = CacheKind::kInt8;
  const Plan plan{.attention = uniform_plan(choice, loaded(checkpoint, {}).plan_shape()),
                  .linear = {}};
  compare(checkpoint, {}, prompt, {plan}, moved(checkpoint, {}, {}, prompt, plan, {}));
}

class TensorPlan : public testing::TestWithParam<const char*> {
 protected:
  Plan plan_for(const Model& model) const {
    const std::string name = GetParam();
    UniformAttention choice;
    choice.mode = name == "copy"       ? AttentionMode::kCopy
                  : name == "baseline" ? AttentionMode::kBaseline
                                       : AttentionMode::kKeys;
    choice.tau = 0.6;
    choice.window = choice.block = name == "auto" ? 128 : 16;
    choice.tau_auto = name == "auto";
    choice.baseline = {.kind = BaselineKind::kQuest, .keep = 0.5, .context = 340};
    Plan plan{.attention = uniform_plan(choice, model.plan_shape()), .linear = {}};
    auto& layers = plan.attention.layers;
    if (name == "reuse") {
      for (const size_t layer : {1, 2, 3, 5, 6}) layers[layer].reuse = true;
    }
    if (name == "heads") {  // whose sets a rank has none of, or all
      for (LayerPlan& layer : layers) {
        layer.heads[0].tau = 0.8;
        layer.heads[1].kind = HeadKind::kDense;
        layer.heads[3].kind = HeadKind::kWindow;
      }
    }
    if (name == "baseline") {
      for (size_t layer = 0; layer < layers.size(); ++layer)
        layers[layer].baseline.kind = static_cast<BaselineKind>(layer % 4);
    }
    if (name == "refine") {  // queries that decide for themselves, and tiles
      plan.attention = refine_plan(model);
      for (size_t layer = 0; layer < layers.size(); ++layer)
        layers[layer].refine.tile = layer % 2 == 0 ? 1 : 16;
    }
    if (name == "mixed") {
      for (const size_t layer : {2, 3, 4}) layers[layer] = LayerPlan{};
      layers[5] = refine_plan(model).layers[5];
      for (size_t head = 0; head < 4; ++head)
        layers[5].heads[head].delta = 0.02 * static_cast<double>(head);
    }
    return plan;
  }
};

TEST_P(TensorPlan, SetsOnEveryRankAreThoseOfTheWholeModel) {
  const CheckpointPtr checkpoint = deep_llama(4);
  Model whole = loaded(checkpoint, {});
  const Plan plan = plan_for(whole);
  const std::vector<int32_t> text = repeating_tokens(330);
  const std::vector<int32_t> prompt(text.begin(), text.begin() + 300);
  const std::vector<TokenSet> sets = all_sets(whole, text, plan);
  const Continuation expected = continued(whole, prompt, 40, plan);
  for (const int n_ranks : {2, 3, 4})
    on_ranks(n_ranks, [&](Communicator& ranks) {
      Model model = loaded(checkpoint, {}, &ranks);
      const std::vector<TokenSet> got = all_sets(model, text, plan);
      ASSERT_EQ(got.size(), sets.size());
      for (size_t i = 0; i < sets.size(); ++i) {
        EXPECT_EQ(got[i].tau, sets[i].tau);
        EXPECT_EQ(got[i].status, sets[i].status);
        EXPECT_EQ(got[i].owner, sets[i].owner);
        EXPECT_EQ(got[i].cluster, sets[i].cluster);
      }
      expect_near(continued(model, prompt, 40, plan), expected, model);
    });
}
INSTANTIATE_TEST_SUITE_P(Plans, TensorPlan,
                         testing::Values("keys", "auto", "copy", "reuse", "heads", "refine",
                                         "mixed", "baseline"),
                         [](const auto& test) { return std::string(test.param); });

class TensorGates : public testing::TestWithParam<const char*> {};

TEST_P(TensorGates, DecideAsThoseOfTheWholeModel) {
  const CheckpointPtr checkpoint = deep_llama(4);
  Model whole = loaded(checkpoint, {});
  const std::string name = GetParam();
  const Bases bases = full_bases(whole.spec());
  const LinearPlan linear =
      uniform_linear_plan({.kind = name == "graded" ? LinearKind::kGraded : LinearKind::kGsi,
                           .rank = name == "graded" ? 0 : 48,
                           .epsilon = 0.4,
                           .adaptive = name == "adaptive" ? 4 : 0},
                          whole.linear_shape());
  const std::vector<Plan> plans = {{.attention = {}, .linear = linear},
                                   {.attention = copy_plan(whole), .linear = linear}};
  whole.prepare_linear(linear, &bases);
  const std::vector<int32_t> prompt = repeating_tokens(40);
  for (const Plan& plan : plans) {
    const Continuation expected = continued(whole, prompt, 8, plan);
    for (const int n_ranks : {2, 3})
      on_ranks(n_ranks, [&](Communicator& ranks) {
        Model model = loaded(checkpoint, {}, &ranks);
        model.prepare_linear(linear, &bases);
        EXPECT_LT(model.prepared_bytes(), whole.prepared_bytes());
        EXPECT_LT(model.weight_bytes(), whole.weight_bytes());
        expect_near(continued(model, prompt, 8, plan), expected, model);
        // Layers whose plan is dense use the same matrices.
        Model dense = loaded(checkpoint, {});
        expect_near(continued(model, prompt, 8, {}), continued(dense, prompt, 8, {}), model);
      });
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, TensorGates, testing::Values("gsi", "adaptive", "graded"),
                         [](const auto& test) { return std::string(test.param); });

// Biases, and blocks whose attention and MLP are parallel.
class TensorGatesGolden : public testing::TestWithParam<const char*> {
 protected:
  // On two ranks, continued with and without a plan.
  static void compare_gated(const CheckpointPtr& checkpoint, const Loading& how,
                            const UniformLinear& choice, double allowed) {
    Model whole = loaded(checkpoint, how);
    const Bases bases = full_bases(whole.spec());
    const Plan plan{.attention = {}, .linear = uniform_linear_plan(choice, whole.linear_shape())};
    whole.prepare_linear(plan.linear, &bases);
    const std::vector<int32_t> prompt = repeating_tokens(30);
    const Continuation expected = continued(whole, prompt, 8, plan),
                       dense = continued(whole, prompt, 8, {});
    on_ranks(2, [&](Communicator& ranks) {
      Model model = loaded(checkpoint, how, &ranks);
      model.prepare_linear(plan.linear, &bases);
      expect_near(continued(model, prompt, 8, plan), expected, model, allowed);
      expect_near(continued(model, prompt, 8, {}), dense, model, allowed);
    });
  }
};

TEST_P(TensorGatesGolden, GiveTheLogitsAndTokensOfTheWholeModel) {
  const CheckpointPtr checkpoint = open_checkpoint(golden_model(GetParam()).path());
  const UniformLinear gsi{.kind = LinearKind::kGsi, .rank = 24, .epsilon = 0.5};
  UniformLinear adaptive = gsi;
  adaptive.adaptive = 4;
  for (const UniformLinear& choice :
       {gsi, adaptive, UniformLinear{.kind = LinearKind::kGraded, .epsilon = 0.4}})
    compare_gated(checkpoint, {}, choice, kAllowed);
}

// Gates that every token passes, and that none does: no round-off changes what they decide. Of two
// runs, what linear_test.cpp allows one in bf16 with bases.
TEST_P(TensorGatesGolden, OfBf16GiveTheTokensOfTheWholeModel) {
  const CheckpointPtr checkpoint = open_checkpoint(golden_model(GetParam()).path());
  const auto n_layers = static_cast<double>(checkpoint->spec().n_layers);
  for (const double epsilon : {1.0, 0.0})
    compare_gated(checkpoint, {.dtype = DType::kBF16, .weights = DType::kBF16},
                  {.kind = LinearKind::kGsi, .rank = 24, .epsilon = epsilon},
                  std::sqrt(2.0) * 3 * 0x1p-9 * std::sqrt(22 * n_layers + 2));
}
INSTANTIATE_TEST_SUITE_P(Models, TensorGatesGolden, testing::Values("models/gpt2", "models/gptj"),
                         [](const auto& test) {
                           return test_name_of(test.param, {"cpu", DType::kF32});
                         });

// Greedy tokens of this random model do not depend on round-off (batch_test.cpp says why).
TEST(TensorShares, BatchesGiveTheAnswersOfTheWholeModel) {
  const CheckpointPtr checkpoint = deep_llama(4);
  Model whole = loaded(checkpoint, {});
  const DividedBatch batch(7);
  for (const Plan& plan : {Plan{}, Plan{.attention = keys_plan(whole), .linear = {}},
                           Plan{.attention = copy_plan(whole), .linear = {}}}) {
    const auto expected = batch.answers_of(whole, 5, plan);
    EXPECT_NE(expected.back().find("600 tokens"), std::string::npos);
    for (const int64_t n_live : {1, 5})
      on_ranks(3, [&](Communicator& ranks) {
        Model model = loaded(checkpoint, {}, &ranks);
        EXPECT_EQ(batch.answers_of(model, n_live, plan), expected);
      });
  }
}

}  // namespace
}  // namespace sluice::impl::test
