// What config.json and GGUF metadata of the families say, and what is refused: golden checkpoints
// show that the rest of it is right.

#include "model/families.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "model/synthetic.h"

namespace sluice::impl {
namespace {

using nlohmann::json;
using Kind = RotaryScaling::Kind;

json config_of(const char* type, const json& more = json::object()) {
  json config = {{"model_type", type},
                 {"num_hidden_layers", 4},
                 {"hidden_size", 64},
                 {"intermediate_size", 96},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"max_position_embeddings", 4096},
                 {"vocab_size", 64},
                 {"tie_word_embeddings", true}};
  config.update(more);
  return config;
}

ModelSpec spec_of(const json& config) {
  return synthetic_checkpoint(ConfigReader(config, "config"))->spec();
}

// The message and hint of the refusal, empty where there is none.
std::string refusal_of(const json& config) {
  try {
    spec_of(config);
  } catch (const Error& error) {
    return std::string(error.what()) + " | " + std::string(error.hint());
  }
  return {};
}

void expect_refused(const json& config, const std::vector<std::string>& fragments) {
  const std::string refusal = refusal_of(config);
  for (const std::string& fragment : fragments)
    EXPECT_NE(refusal.find(fragment), refusal.npos) << fragment << " in: " << refusal;
}

TEST(Families, YarnAllowsAContextOfItsFactor) {
  const json rope = {{"rope_type", "yarn"},
                     {"factor", 4.0},
                     {"rope_theta", 1e6},
                     {"original_max_position_embeddings", 4096}};
  const ModelSpec spec = spec_of(config_of("qwen2", {{"rope_parameters", rope}}));
  EXPECT_EQ(spec.max_positions, 4 * 4096);
  EXPECT_EQ(spec.default_context, 4096);
  EXPECT_EQ(spec.rotary.base, 1e6);
  EXPECT_DOUBLE_EQ(spec.rotary.scaling.attention_factor, 0.1 * std::log(4.0) + 1);
  // A model that states its whole context runs in it.
  const ModelSpec whole =
      spec_of(config_of("qwen2", {{"rope_parameters", rope}, {"max_position_embeddings", 16384}}));
  EXPECT_EQ(whole.max_positions, 16384);
  EXPECT_EQ(whole.default_context, 0);
}

// Every spelling of Phi-3's files.
TEST(Families, LongRopeRunsInTheContextOfTrainingUnlessAskedForMore) {
  const std::vector<double> factors(8, 1.5);
  for (const char* type : {"longrope", "su", "yarn"})
    for (const bool on_top : {true, false}) {
      json rope = {{"type", type}, {"short_factor", factors}, {"long_factor", factors}};
      json config = config_of("phi3");
      (on_top ? config : rope)["original_max_position_embeddings"] = 1024;
      config["rope_scaling"] = rope;
      const ModelSpec spec = spec_of(config);
      EXPECT_EQ(spec.rotary.scaling.kind, Kind::kLongRope);
      EXPECT_EQ(spec.max_positions, 4096);
      EXPECT_EQ(spec.default_context, 1024);
      EXPECT_EQ(spec.rotary.scaling.long_factors, factors);
      EXPECT_DOUBLE_EQ(spec.rotary.scaling.attention_factor,
                       std::sqrt(1 + std::log(4.0) / std::log(1024.0)));
    }
}

TEST(Families, RotaryOptionsThatCannotBeAreRefused) {
  const auto with = [](const json& rope) { return config_of("phi3", {{"rope_parameters", rope}}); };
  const std::vector<double> eight(8, 1.0), seven(7, 1.0);
  std::vector<double> negative = eight;
  negative[3] = -1;
  expect_refused(with({{"rope_type", "longrope"}, {"short_factor", eight}}),
                 {"long_factor", "8 positive numbers"});
  expect_refused(with({{"rope_type", "longrope"}, {"short_factor", seven}, {"long_factor", eight}}),
                 {"short_factor", "8 positive numbers"});
  expect_refused(
      with({{"rope_type", "longrope"}, {"short_factor", eight}, {"long_factor", negative}}),
      {"long_factor", "8 positive numbers"});
  expect_refused(with({{"rope_type", "spiral"}, {"factor", 2.0}}),
                 {"rope_type", "yarn or longrope", "spiral"});
  expect_refused(with({{"rope_type", "default"}, {"partial_rotary_factor", 0.2}}),
                 {"3 of 16 dimensions", "even"});
  const json yarn = {{"rope_type", "yarn"}, {"factor", 2.0}, {"rope_theta", 1.0}};
  expect_refused(config_of("qwen3", {{"head_dim", 16}, {"rope_parameters", yarn}}),
                 {"rope_theta", "more than 1"});
  json no_beta = yarn;
  no_beta["rope_theta"] = 1e4;
  no_beta["beta_fast"] = -1;
  expect_refused(config_of("qwen3", {{"head_dim", 16}, {"rope_parameters", no_beta}}),
                 {"beta_fast"});
}

TEST(Families, LayersOfSmolLm3RotateAsStated) {
  EXPECT_EQ(spec_of(config_of("smollm3")).rotary_layers,
            (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(spec_of(config_of("smollm3", {{"no_rope_layers", {0, 1, 0, 1}}})).rotary_layers,
            (std::vector<bool>{false, true, false, true}));
  expect_refused(config_of("smollm3", {{"no_rope_layers", {0, 1}}}),
                 {"no_rope_layers", "each of 4 layers"});
  expect_refused(config_of("smollm3", {{"no_rope_layers", {0, 1, 2, 1}}}), {"no_rope_layers"});
}

TEST(Families, HeadsOfQwen3AreWideUnlessStated) {
  EXPECT_EQ(spec_of(config_of("qwen3")).head_dim, 128);
  EXPECT_EQ(spec_of(config_of("qwen3", {{"head_dim", 32}})).head_dim, 32);
}

TEST(Families, MixturesOfExpertsAreRefusedByName) {
  for (const char* type : {"mixtral", "qwen2_moe", "qwen3_moe", "phimoe"})
    expect_refused(config_of(type), {"model_type", type, "mixtures of experts"});
  GgufFile file;
  file.path = "model.gguf";
  file.metadata["general.architecture"] = std::string("llama");
  file.metadata["llama.expert_count"] = int64_t{8};
  try {
    describe(file);
    FAIL() << "was not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("llama.expert_count"), std::string::npos);
  }
}

// The least metadata that a Llama of GGUF has.
GgufFile gguf_of(const std::string& architecture) {
  GgufFile file;
  file.path = "model.gguf";
  file.metadata["general.architecture"] = architecture;
  const auto set = [&](const char* key, GgufValue value) {
    file.metadata[architecture + "." + key] = std::move(value);
  };
  set("block_count", int64_t{4});
  set("embedding_length", int64_t{64});
  set("attention.head_count", int64_t{4});
  set("feed_forward_length", int64_t{96});
  set("context_length", int64_t{4096});
  set("attention.layer_norm_rms_epsilon", 1e-5);
  file.weights.add({"token_embd.weight", DType::kF32, {64, 64}, {}});
  return file;
}

TEST(Families, GgufOfQwenKeepsRotaryPairsApart) {
  for (const char* architecture : {"qwen2", "qwen3"})
    EXPECT_EQ(describe(gguf_of(architecture)).spec.rotary.style, RotaryStyle::kHalves);
  for (const char* architecture : {"llama", "smollm3"})
    EXPECT_EQ(describe(gguf_of(architecture)).spec.rotary.style, RotaryStyle::kInterleaved);
}

TEST(Families, GgufScalingThatIsNotKnownIsRefused) {
  const auto refusal = [](const char* key, GgufValue value, const char* kind) {
    GgufFile file = gguf_of("qwen2");
    file.metadata["qwen2.rope.scaling.type"] = std::string(kind);
    file.metadata["qwen2.rope.scaling.factor"] = 4.0;
    if (*key != '\0') file.metadata[std::string("qwen2.rope.scaling.") + key] = std::move(value);
    try {
      describe(file);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal("", 0.0, "yarn"), "");
  EXPECT_NE(refusal("", 0.0, "spiral").find("`spiral`, expected none"), std::string::npos);
  EXPECT_NE(refusal("", 0.0, "longrope").find("longrope with its factors"), std::string::npos);
  EXPECT_NE(refusal("factor", -1.0, "yarn").find("positive"), std::string::npos);
  EXPECT_NE(refusal("yarn_ext_factor", 0.5, "yarn").find("expected 1"), std::string::npos);
  EXPECT_NE(refusal("yarn_log_multiplier", 0.1, "yarn").find("expected none"), std::string::npos);
  EXPECT_NE(refusal("original_context_length", int64_t{0}, "yarn").find("expected 1 to"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice::impl
