// Layers with a sliding window next to accelerated ones: they attend densely within the window,
// whatever a plan says.

#include <limits>

#include "eval/compare/attention_work.h"
#include "parity/compare.h"
#include "unit/model/family_models.h"
#include "unit/plan/sample_plan.h"

namespace sluice::impl::test {
namespace {

constexpr int64_t kWindow = 32, kContext = 128;

// Four layers; `types` as config.json has them, or empty: the window is every layer's.
Model mistral(const std::vector<std::string>& types, const ModelSetup& setup) {
  nlohmann::json config = {{"model_type", "mistral"},
                           {"num_hidden_layers", 4},
                           {"hidden_size", 64},
                           {"intermediate_size", 64},
                           {"num_attention_heads", 4},
                           {"num_key_value_heads", 2},
                           {"max_position_embeddings", kContext},
                           {"sliding_window", kWindow},
                           {"vocab_size", 64},
                           {"tie_word_embeddings", false}};
  if (!types.empty()) config["layer_types"] = types;
  return Model(synthetic_checkpoint(ConfigReader(config, "mistral")), setup.make(), {});
}
const std::vector<std::string> kMixed = {"sliding_attention", "full_attention", "sliding_attention",
                                         "full_attention"};

AttentionPlan refined(double delta, const PlanShape& shape) {
  UniformAttention choice;
  choice.mode = AttentionMode::kRefine;
  choice.window = 0;
  choice.delta = delta;
  choice.refine.segment = 32;
  choice.refine.tile = 1;
  return uniform_plan(choice, shape);
}

std::vector<float> run(Model& model, const AttentionPlan& plan) {
  KvCache cache = model.make_cache(1, 0, plan);
  return hidden_of(model, repeating_tokens(kContext), cache);
}

class SlidingWindow : public testing::TestWithParam<ModelSetup> {};

TEST_P(SlidingWindow, DeltaZeroEqualsDense) {
  for (const auto& types : {std::vector<std::string>(), kMixed}) {
    Model model = mistral(types, GetParam());
    const auto dense = run(model, {});
    const double round_off =
        (GetParam().dtype == DType::kF32 ? 5e-6 : 2 * 0x1p-7) * range_of(dense);
    EXPECT_CLOSE(run(model, refined(0, model.plan_shape())), dense, round_off);
  }
}

TEST_P(SlidingWindow, MeansChangeOnlyWhatSeesTheWholeContext) {
  const double all_means = std::numeric_limits<double>::infinity();
  Model windows = mistral({}, GetParam()), mixed = mistral(kMixed, GetParam());
  EXPECT_SAME_BITS(run(windows, refined(all_means, windows.plan_shape())), run(windows, {}));
  EXPECT_NE(run(mixed, refined(all_means, mixed.plan_shape())), run(mixed, {}));
}

std::string setup_name(const testing::TestParamInfo<ModelSetup>& of) {
  return test_name_of("Mistral", of.param);
}
INSTANTIATE_TEST_SUITE_P(Setups, SlidingWindow, testing::ValuesIn(kModelSetups), setup_name);

TEST(SlidingWindowKeys, AreCountedWithinTheWindow) {
  Model model = mistral(kMixed, {"cpu", DType::kF32});
  // The first 32 queries see themselves and all before; the others 32 keys each.
  const int64_t in_window = 32 * 33 / 2 + 96 * 32, in_context = 128 * 129 / 2;
  EXPECT_EQ(dense_keys(kContext, kWindow), in_window);
  EXPECT_EQ(dense_keys(kContext, 0), in_context);
  EXPECT_EQ(dense_keys(20, kWindow), 20 * 21 / 2);
  for (const double delta : {0.0, std::numeric_limits<double>::infinity()}) {
    KvCache cache = model.make_cache(1, 0, refined(delta, model.plan_shape()));
    hidden_of(model, repeating_tokens(kContext), cache);
    AttentionWork work;
    work.add(cache, model.spec());
    ASSERT_EQ(work.refine_reads().size(), 4u);
    EXPECT_TRUE(work.refine_reads()[0].empty() && work.refine_reads()[2].empty());
    double keys = 2 * 4.0 * in_window;  // two layers of four query heads
    for (const size_t layer : {1, 3}) keys += work.refine_reads()[layer].keys();
    EXPECT_NEAR(work.keys_read_fraction(), keys / (2 * 4.0 * (in_window + in_context)), 1e-12);
    // Dense layers keep every key, within the window or not.
    EXPECT_GE(cache.memory().bytes.total(), cache.memory().dense_bytes);
  }
}

// A plan from a file that was made where the window held the whole context.
TEST(SlidingWindowPlan, OfAShorterContextIsFollowedByTheOtherLayers) {
  Model model = mistral(kMixed, {"cpu", DType::kF32});
  PlanShape shorter = model.plan_shape();
  shorter.context = kWindow;
  PlanFile file = dense_plan();
  file.context = kWindow;
  file.model.n_layers = 4;
  file.model.n_kv_heads = 2;
  for (const PlanShape& shape : {shorter, model.plan_shape()}) {
    file.plan.attention = refined(0, shape);
    EXPECT_EQ(file.plan.attention.layers[0].mode,
              shape.context == kWindow ? AttentionMode::kRefine : AttentionMode::kDense);
    const PlanFile read = parsed(plan_file_json(file));
    EXPECT_EQ(read, file);
    KvCache cache = model.make_cache(1, 0, read.plan.attention);
    EXPECT_EQ(cache.plan(), refined(0, model.plan_shape()));
    const auto dense = run(model, {});
    EXPECT_CLOSE(hidden_of(model, repeating_tokens(kContext), cache), dense,
                 5e-6 * range_of(dense));
  }
}

TEST(CappedScores, KeepEveryLayerDense) {
  const nlohmann::json config = {{"model_type", "gemma2"},
                                 {"num_hidden_layers", 2},
                                 {"hidden_size", 32},
                                 {"intermediate_size", 32},
                                 {"num_attention_heads", 2},
                                 {"num_key_value_heads", 1},
                                 {"head_dim", 16},
                                 {"max_position_embeddings", kContext},
                                 {"sliding_window", kWindow},
                                 {"attn_logit_softcapping", 5.0},
                                 {"vocab_size", 64}};
  Model model(synthetic_checkpoint(ConfigReader(config, "gemma2")), make_cpu_backend(DType::kF32),
              {});
  PlanShape uncapped = model.plan_shape();
  EXPECT_TRUE(uncapped.capped);
  uncapped.capped = false;
  const AttentionPlan asked = refined(1, uncapped);
  EXPECT_EQ(asked.layers[1].mode, AttentionMode::kRefine);
  KvCache cache = model.make_cache(1, 0, asked);
  EXPECT_TRUE(cache.plan().all_dense());
  EXPECT_SAME_BITS(hidden_of(model, repeating_tokens(kContext), cache), run(model, {}));
  AttentionWork work;
  work.add(cache, model.spec());
  EXPECT_EQ(work.keys_read_fraction(), 1);
}

}  // namespace
}  // namespace sluice::impl::test
