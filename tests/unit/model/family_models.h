// One small model of every family with random weights, at awkward sizes: for what must hold of
// attention in all of them.

#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "model/synthetic.h"
#include "unit/model/golden_models.h"

namespace sluice::impl::test {

struct FamilyCase {
  const char* name;
  nlohmann::json config;
  int64_t n_tokens;
  double tau;  // that merges some of the tokens of repeating_tokens(), not all
};

inline void PrintTo(const FamilyCase& c, std::ostream* out) { *out << c.name; }

// Two layers each; head_dim in the name.
inline const std::vector<FamilyCase>& family_cases() {
  const auto llama = [](int d, int heads, int kv_heads, int positions) {
    return nlohmann::json{{"model_type", "llama"},
                          {"num_hidden_layers", 2},
                          {"hidden_size", d},
                          {"intermediate_size", 64},
                          {"num_attention_heads", heads},
                          {"num_key_value_heads", kv_heads},
                          {"max_position_embeddings", positions},
                          {"vocab_size", 64},
                          {"rms_norm_eps", 1e-5},
                          {"tie_word_embeddings", false}};
  };
  const auto relative = [&](const char* type, int d, const nlohmann::json& more) {
    nlohmann::json config = llama(d, 2, 1, 160);
    config["model_type"] = type;
    config.update(more);
    return config;
  };
  static const std::vector<FamilyCase> cases = {
      {"gpt2_64",
       {{"model_type", "gpt2"},
        {"n_layer", 2},
        {"n_embd", 128},
        {"n_head", 2},
        {"n_positions", 160},
        {"vocab_size", 64}},
       129,
       0.8},
      {"gptj_256",
       {{"model_type", "gptj"},
        {"n_layer", 2},
        {"n_embd", 256},
        {"n_head", 1},
        {"n_positions", 160},
        {"rotary_dim", 64},
        {"n_inner", 64},
        {"vocab_size", 64},
        {"tie_word_embeddings", true}},
       37,
       0.6},
      {"opt_80",
       {{"model_type", "opt"},
        {"num_hidden_layers", 2},
        {"hidden_size", 160},
        {"word_embed_proj_dim", 160},
        {"ffn_dim", 320},
        {"num_attention_heads", 2},
        {"max_position_embeddings", 160},
        {"do_layer_norm_before", true},
        {"activation_function", "relu"},
        {"vocab_size", 64}},
       129,
       0.8},
      {"llama_128", llama(256, 2, 1, 160), 129, 0.6},
      {"llama_16", llama(64, 4, 1, 1024), 1000, 0.6},
      {"qwen3_64", relative("qwen3", 96, {{"head_dim", 64}}), 129, 0.6},
      // The second layer does not rotate.
      {"smollm3_32", relative("smollm3", 64, {{"no_rope_layer_interval", 2}}), 129, 0.8},
      {"phi3_96", relative("phi3", 192, {{"partial_rotary_factor", 0.75}}), 129, 0.6},
      {"gpt_neox_80",
       {{"model_type", "gpt_neox"},
        {"num_hidden_layers", 2},
        {"hidden_size", 160},
        {"intermediate_size", 320},
        {"num_attention_heads", 2},
        {"max_position_embeddings", 160},
        {"rotary_pct", 0.25},
        {"tie_word_embeddings", true},
        {"vocab_size", 64}},
       129,
       0.8},
      // Global layers alone: those with a window would stay dense.
      {"gemma3_64",
       {{"model_type", "gemma3_text"},
        {"num_hidden_layers", 2},
        {"hidden_size", 128},
        {"intermediate_size", 64},
        {"num_attention_heads", 4},
        {"num_key_value_heads", 2},
        {"head_dim", 64},
        {"query_pre_attn_scalar", 48},
        {"max_position_embeddings", 160},
        {"layer_types", {"full_attention", "full_attention"}},
        {"vocab_size", 64}},
       129,
       0.8},
      {"bert_64",
       {{"model_type", "bert"},
        {"num_hidden_layers", 2},
        {"hidden_size", 128},
        {"intermediate_size", 256},
        {"num_attention_heads", 2},
        {"max_position_embeddings", 160},
        {"type_vocab_size", 2},
        {"hidden_act", "gelu"},
        {"layer_norm_eps", 1e-12},
        {"vocab_size", 64}},
       129,
       0.8},
      {"esm_16",
       {{"model_type", "esm"},
        {"num_hidden_layers", 2},
        {"hidden_size", 48},
        {"intermediate_size", 96},
        {"num_attention_heads", 3},
        {"max_position_embeddings", 256},
        {"position_embedding_type", "rotary"},
        {"emb_layer_norm_before", false},
        {"token_dropout", true},
        {"mask_token_id", 32},
        {"pad_token_id", 1},
        {"layer_norm_eps", 1e-5},
        {"vocab_size", 33}},
       129,
       0.6},
  };
  return cases;
}

inline bool is_encoder(const FamilyCase& c) {
  const std::string type = c.config.at("model_type");
  return type == "bert" || type == "esm";
}

inline Model load(const FamilyCase& c, const ModelSetup& setup) {
  const nlohmann::json config = c.config;
  return Model(synthetic_checkpoint(ConfigReader(config, c.name)), setup.make(), {});
}

// Few different tokens, so that many are alike.
inline std::vector<int32_t> repeating_tokens(int64_t n, uint32_t seed = 1) {
  std::vector<int32_t> tokens;
  uint32_t state = seed;
  for (int64_t i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    tokens.push_back(static_cast<int32_t>(3 + (state >> 16) % 9));
  }
  return tokens;
}

// What rows of a backend hold, on the host.
inline std::vector<float> floats_of(Backend& backend, const ConstTensor& rows) {
  const Shape shape{rows.rows(), rows.row_elements()};
  const Buffer wide = backend.allocate(DType::kF32, shape);
  backend.convert(rows, wide.view());
  std::vector<float> out(static_cast<size_t>(shape.numel()));
  backend.download(wide.view(), Tensor(out.data(), DType::kF32, shape));
  return out;
}

// Hidden states after the final norm, (n_tokens, d_model).
inline std::vector<float> hidden_of(Model& model, std::span<const int32_t> tokens, KvCache& cache) {
  return floats_of(model.backend(), model.forward(tokens, cache));
}

// The same of pieces, single tokens among them.
inline std::vector<float> hidden_in_pieces(Model& model, std::span<const int32_t> tokens,
                                           KvCache& cache) {
  const size_t n = tokens.size();
  std::vector<float> pieces;
  size_t begin = 0;
  for (const size_t end : {n / 3, n / 3 + 1, n / 3 + 2, n / 3 + 7, n - 5, n - 1, n}) {
    const auto part = hidden_of(model, tokens.subspan(begin, end - begin), cache);
    pieces.insert(pieces.end(), part.begin(), part.end());
    begin = end;
  }
  return pieces;
}

// What the cases of this folder run on that are compiled for several programs: host_setups.cpp, or
// parity/cuda_setups.cpp.
std::vector<ModelSetup> family_setups();

// A test of every family on some backends.
class FamilyTest : public testing::TestWithParam<std::tuple<FamilyCase, ModelSetup>> {
 protected:
  void SetUp() override {
    if (setup().missing != nullptr) GTEST_SKIP() << setup().missing;
    model.emplace(load(family(), setup()));
  }
  const FamilyCase& family() const { return std::get<0>(GetParam()); }
  const ModelSetup& setup() const { return std::get<1>(GetParam()); }

  std::vector<TokenSet> sets_of(const KvCache& cache, int64_t batch = 0) const {
    std::vector<TokenSet> sets;
    for (int64_t layer = 0; layer < model->spec().n_layers; ++layer)
      sets.push_back(cache.selector(layer, batch)->sets()[0]);
    return sets;
  }
  // A device sums products of another height in another order, and in bf16 a token of the second
  // layer that is within round-off of the threshold may be kept or merged.
  bool is_order_sensitive() const { return setup().on_device() && setup().dtype == DType::kBF16; }
  // How many tokens two runs can be compared by, where it may: those before the first that was
  // decided otherwise. An encoder's tokens see all others, but one among so many changes little.
  size_t n_decided_alike(const std::vector<TokenSet>& a, const std::vector<TokenSet>& b) const {
    const size_t n = a[0].status.size();
    if (!is_order_sensitive() || is_encoder(family())) return n;
    size_t alike = n;
    for (size_t layer = 0; layer < a.size(); ++layer)
      for (size_t t = 0; t < alike; ++t)
        if (a[layer].status[t] != b[layer].status[t] || a[layer].owner[t] != b[layer].owner[t])
          alike = t;
    EXPECT_GE(alike, n / 10);
    return alike;
  }

  std::optional<Model> model;
};
inline std::string family_test_name(const testing::TestParamInfo<FamilyTest::ParamType>& info) {
  return test_name_of(std::get<0>(info.param).name, std::get<1>(info.param));
}

}  // namespace sluice::impl::test
