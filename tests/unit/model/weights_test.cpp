// Models whose matrices stay in blocks, stored so or made while loading, against the same blocks
// expanded.

#include <cmath>

#include "core/error.h"
#include "model/weight_type.h"
#include "parity/compare.h"
#include "unit/model/family_models.h"

namespace sluice::impl::test {
namespace {

constexpr DType kBlockTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                                 DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// A value rounded to 8 bits errs by the block's largest over 127 times 12^-1/2 in the root mean
// square. The largest of 256 normal numbers is near 3, so that is 2^-7 of a value of common size,
// in each of the four inputs of a layer and of the head. Independent errors add up as the root of
// their number; three standard deviations cover the worst of some hundred logits.
double tolerance_of(int64_t n_layers) {
  return 3 * 0x1p-7 * std::sqrt(4.0 * static_cast<double>(n_layers) + 1);
}

nlohmann::json wide_llama() {
  return {{"model_type", "llama"},         {"num_hidden_layers", 2},   {"hidden_size", 256},
          {"intermediate_size", 512},      {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"max_position_embeddings", 64}, {"vocab_size", 67},         {"rms_norm_eps", 1e-5},
          {"tie_word_embeddings", false}};
}

Model load_as(const nlohmann::json& config, DType dtype, std::optional<DType> weights) {
  return Model(synthetic_checkpoint(ConfigReader(config, "config")), make_cpu_backend(dtype),
               {.context = 0, .progress = {}, .weights = weights});
}

// The blocks of `weights` expanded: what the reference backend makes of them.
Model load_expanded(const nlohmann::json& config, std::optional<DType> weights) {
  return Model(synthetic_checkpoint(ConfigReader(config, "config")),
               make_reference_backend(DType::kF32),
               {.context = 0, .progress = {}, .weights = weights});
}

// Logits of tokens fed one by one.
std::vector<float> decoded(Model& model, const std::vector<int32_t>& tokens) {
  KvCache cache = model.make_cache();
  std::vector<float> all;
  for (const int32_t token : tokens) {
    const auto one = logits_of(model, {token}, cache);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

std::vector<float> prefilled(Model& model, const std::vector<int32_t>& tokens) {
  KvCache cache = model.make_cache();
  return logits_of(model, tokens, cache);
}

double worst_error(const std::vector<float>& got, const std::vector<float>& expected) {
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i)
    worst = std::max(worst, std::isfinite(got[i]) ? std::abs(double{got[i]} - expected[i]) : 1e9);
  return worst / range_of(expected);
}

TEST(WeightTypes, DecodingAgreesWithExpandedBlocksToTheRoundingOfActivations) {
  const std::vector<int32_t> tokens = repeating_tokens(12);
  for (const DType type : kBlockTypes) {
    Model expanded = load_expanded(wide_llama(), type);
    const auto expected = decoded(expanded, tokens);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Model model = load_as(wide_llama(), dtype, type);
      const double error = worst_error(decoded(model, tokens), expected);
      std::printf("%s, %s: worst logit off by %.5f of their range, %.5f allowed\n",
                  std::string(dtype_name(type)).c_str(), std::string(dtype_name(dtype)).c_str(),
                  error, tolerance_of(2));
      EXPECT_LT(error, tolerance_of(2)) << dtype_name(type);
      EXPECT_GT(error, 1e-5) << dtype_name(type);  // of none, nothing would have been rounded
    }
  }
}

TEST(WeightTypes, PrefillInF32IsThatOfTheExpandedBlocks) {
  const std::vector<int32_t> tokens = repeating_tokens(40);
  for (const DType type : kBlockTypes) {
    Model model = load_as(wide_llama(), DType::kF32, type);
    Model expanded = load_expanded(wide_llama(), type);
    EXPECT_LT(worst_error(prefilled(model, tokens), prefilled(expanded, tokens)), 5e-6)
        << dtype_name(type);
  }
}

TEST(WeightTypes, PrefillInBF16AgreesWithExpandedBlocksToTheRoundingOfActivations) {
  const std::vector<int32_t> tokens = repeating_tokens(40);
  for (const DType type : kBlockTypes) {
    Model model = load_as(wide_llama(), DType::kBF16, type);
    Model expanded = load_expanded(wide_llama(), type);
    EXPECT_LT(worst_error(prefilled(model, tokens), prefilled(expanded, tokens)), tolerance_of(2))
        << dtype_name(type);
  }
}

TEST(WeightTypes, BlocksThatAreAskedForExpandedAre) {
  const auto checkpoint = synthetic_checkpoint(ConfigReader(wide_llama(), "config"));
  const std::vector<int32_t> tokens = repeating_tokens(12);
  for (const DType type : kBlockTypes) {
    Model model(checkpoint, make_cpu_backend(DType::kF32),
                {.context = 0, .progress = {}, .weights = type, .expand_blocks = true});
    EXPECT_GT(model.weight_bytes(), 3 * load_as(wide_llama(), DType::kF32, type).weight_bytes());
    Model expanded = load_expanded(wide_llama(), type);
    EXPECT_LT(worst_error(decoded(model, tokens), decoded(expanded, tokens)), 5e-6)
        << dtype_name(type);
  }
}

TEST(WeightTypes, TakeTheBytesOfTheirBlocks) {
  const Model plain = load_as(wide_llama(), DType::kBF16, std::nullopt);
  for (const DType type : kBlockTypes) {
    const Model model = load_as(wide_llama(), DType::kBF16, type);
    const BlockSize block = block_size(type);
    const double share =
        static_cast<double>(block.bytes) / (2.0 * static_cast<double>(block.elements));
    // The head's 67 rows take 72 in groups of eight, and up to 72 in panels.
    EXPECT_NEAR(
        static_cast<double>(model.weight_bytes()) / static_cast<double>(plain.weight_bytes()),
        share, 0.04 * share)
        << dtype_name(type);
    EXPECT_EQ(model.n_other_weights(), 0);
  }
}

TEST(WeightTypes, StoredBlocksStay) {
  for (const char* name :
       {"gguf/gpt2-q4_0.gguf", "gguf/llama-q8_0.gguf", "gguf/llama-mixed.gguf"}) {
    const GoldenModel golden = golden_model(name);
    const auto checkpoint = open_checkpoint(golden.path());
    Model expanded = load(golden, {"reference", DType::kF32});
    Model model(checkpoint, make_cpu_backend(DType::kF32),
                {.context = golden.context, .progress = {}});
    EXPECT_LT(model.weight_bytes(), load(golden, {"cpu", DType::kF32}).weight_bytes()) << name;
    const int64_t n_layers = model.spec().n_layers;
    EXPECT_LT(worst_error(decoded(model, golden.prompt), decoded(expanded, golden.prompt)),
              tolerance_of(n_layers))
        << name;
    EXPECT_LT(worst_error(prefilled(model, golden.prompt), prefilled(expanded, golden.prompt)),
              golden.prompt.size() > 8 ? 5e-6 : tolerance_of(n_layers))
        << name;
  }
}

TEST(WeightTypes, WidthsThatDoNotFitGetQ8OrThePlainType) {
  EXPECT_EQ(fitting_weight_type(DType::kQ4_K, 512), DType::kQ4_K);
  EXPECT_EQ(fitting_weight_type(DType::kQ4_K, 576), DType::kQ8_0);
  EXPECT_EQ(fitting_weight_type(DType::kQ4_0, 576), DType::kQ4_0);
  EXPECT_EQ(fitting_weight_type(DType::kQ4_0, 48), DType::kF32);
  EXPECT_EQ(fitting_weight_type(DType::kBF16, 48), DType::kBF16);
  nlohmann::json config = wide_llama();
  config["intermediate_size"] = 96;
  Model model = load_as(config, DType::kF32, DType::kQ5_K);
  EXPECT_EQ(model.n_weights(), 9);
  EXPECT_EQ(model.n_other_weights(), 2);  // the MLP's second matrices
  config["intermediate_size"] = 100;
  Model odd = load_as(config, DType::kF32, DType::kQ5_K);
  EXPECT_EQ(odd.n_other_weights(), 2);
  for (const float x : decoded(odd, {1, 2, 3})) EXPECT_TRUE(std::isfinite(x));
}

TEST(WeightTypes, PlainTypesGoWithTheComputeTypeAlone) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const DType other = dtype == DType::kF32 ? DType::kBF16 : DType::kF32;
    EXPECT_THROW(load_as(wide_llama(), dtype, other), Error);
    Model stored = load_as(wide_llama(), dtype, std::nullopt);
    Model named = load_as(wide_llama(), dtype, dtype);
    EXPECT_EQ(decoded(stored, {1, 2, 3}), decoded(named, {1, 2, 3}));
  }
}

TEST(WeightTypes, NamesAreThoseOfTheTypes) {
  for (const DType type : kWeightTypes) EXPECT_EQ(weight_type_named(dtype_name(type)), type);
  EXPECT_FALSE(weight_type_named("q3_k"));
  EXPECT_FALSE(weight_type_named(""));
}

}  // namespace
}  // namespace sluice::impl::test
