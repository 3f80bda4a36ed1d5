// ESM-2: a protein encoder with rotary embedding, pre-norm blocks and token dropout.

#include <fmt/format.h>

#include "model/families.h"

namespace sluice::impl {
namespace {

// Published files carry the frequencies they were trained with, the same in every layer, and
// rounded in some; transformers uses them, so they are the model.
std::vector<float> stored_frequencies(const WeightStore& weights, const std::string& prefix,
                                      int64_t count) {
  for (const char* layer : {"0", "*"}) {
    const StoredTensor* stored = weights.find(
        fmt::format("{}encoder.layer.{}.attention.self.rotary_embeddings.inv_freq", prefix, layer));
    if (stored == nullptr || stored->shape.numel() != count) continue;
    std::vector<float> values(static_cast<size_t>(count));
    expand(*stored, 0, values);
    return values;
  }
  return {};
}

}  // namespace

ModelDescription describe_esm2(const ConfigReader& config, const WeightStore& weights) {
  ModelDescription model;
  ModelSpec& spec = model.spec;
  spec.family = "esm";
  spec.causal = false;
  read_hidden_sizes(config, "intermediate_size", spec);
  spec.norm_epsilon = static_cast<float>(config.float_or("layer_norm_eps", 1e-12, 0, 1));
  spec.activation = Activation::kGeluErf;  // the code's, whatever `hidden_act` says
  spec.head_activation = Activation::kGeluErf;
  spec.token_dropout = config.bool_or("token_dropout", false);
  if (config.has("mask_token_id") || spec.token_dropout)
    spec.mask_id = static_cast<int32_t>(config.require_int("mask_token_id", 0, spec.vocab - 1));

  WeightNames& names = model.names;
  const std::string prefix =
      find_prefix(weights, {"esm.", ""}, "embeddings.word_embeddings.weight");
  names.token_table = prefix + "embeddings.word_embeddings.weight";
  spec.max_positions = config.require_int("max_position_embeddings", 1, kMaxPositions);
  const std::string position = config.string_or("position_embedding_type", "absolute");
  if (position == "rotary") {
    spec.position = PositionKind::kRotary;
    if (spec.head_dim % 2 != 0) config.refuse("num_attention_heads", "an even head size");
    spec.rotary.dim = spec.head_dim;
    spec.rotary.base = config.float_or("rope_theta", 10000, 1, 1e15);
    spec.rotary.frequencies = stored_frequencies(weights, prefix, spec.head_dim / 2);
  } else if (position == "absolute") {
    // Positions count from the row after the padding token's.
    spec.position_offset = config.int_or("pad_token_id", 1, 0, spec.vocab - 1) + 1;
    spec.max_positions -= spec.position_offset;
    if (spec.max_positions < 1)
      config.refuse("max_position_embeddings", "more than `pad_token_id` + 1");
    names.position_table = prefix + "embeddings.position_embeddings.weight";
  } else {
    config.refuse("position_embedding_type", "\"rotary\" or \"absolute\"");
  }
  if (config.bool_or("emb_layer_norm_before", false))
    names.embed_norm = norm_named(weights, prefix + "embeddings.layer_norm");
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    const std::string stem = fmt::format("{}encoder.layer.{}.", prefix, layer);
    names.layers.push_back(encoder_layer_names(stem, spec));
    names.layers.back().attention_norm = norm_named(weights, stem + "attention.LayerNorm");
    names.layers.back().mlp_norm = norm_named(weights, stem + "LayerNorm");
  }
  names.final_norm = norm_named(weights, prefix + "encoder.emb_layer_norm_after");
  if (weights.find("lm_head.dense.weight") != nullptr) {
    names.head_transform = {linear_named("lm_head.dense", spec.d_model)};
    names.head_norm = norm_named(weights, "lm_head.layer_norm");
    const bool untied = weights.find("lm_head.decoder.weight") != nullptr;
    names.head = {{.weight = untied ? "lm_head.decoder.weight" : names.token_table,
                   .bias = "lm_head.bias",
                   .n_out = spec.vocab}};
  }
  return model;
}

}  // namespace sluice::impl
