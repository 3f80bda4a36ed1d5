// BERT: an encoder, post-norm, learned positions, token types (all of type 0 here).

#include <fmt/format.h>

#include "model/families.h"

namespace sluice::impl {

ModelDescription describe_bert(const ConfigReader& config, const WeightStore& weights) {
  ModelDescription model;
  ModelSpec& spec = model.spec;
  spec.family = "bert";
  spec.causal = config.bool_or("is_decoder", false);
  read_hidden_sizes(config, "intermediate_size", spec);
  spec.max_positions = config.require_int("max_position_embeddings", 1, kMaxPositions);
  spec.block = BlockKind::kPostNorm;
  spec.norm_epsilon = static_cast<float>(config.float_or("layer_norm_eps", 1e-12, 0, 1));
  spec.activation = spec.head_activation = activation_named(config, "hidden_act", "gelu");
  if (config.string_or("position_embedding_type", "absolute") != "absolute")
    config.refuse("position_embedding_type", "\"absolute\"");

  WeightNames& names = model.names;
  const std::string prefix =
      find_prefix(weights, {"bert.", ""}, "embeddings.word_embeddings.weight");
  names.token_table = prefix + "embeddings.word_embeddings.weight";
  names.position_table = prefix + "embeddings.position_embeddings.weight";
  names.type_table = prefix + "embeddings.token_type_embeddings.weight";
  names.embed_norm = norm_named(weights, prefix + "embeddings.LayerNorm");
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    const std::string stem = fmt::format("{}encoder.layer.{}.", prefix, layer);
    names.layers.push_back(encoder_layer_names(stem, spec));
    names.layers.back().attention_norm = norm_named(weights, stem + "attention.output.LayerNorm");
    names.layers.back().mlp_norm = norm_named(weights, stem + "output.LayerNorm");
  }
  const std::string head = "cls.predictions.";
  if (weights.find(head + "transform.dense.weight") != nullptr) {
    names.head_transform = {linear_named(head + "transform.dense", spec.d_model)};
    names.head_norm = norm_named(weights, head + "transform.LayerNorm");
    // An untied output matrix comes with a bias of its own, and then the other one is not read.
    const bool untied = weights.find(head + "decoder.weight") != nullptr;
    const bool decoder_bias = weights.find(head + "decoder.bias") != nullptr;
    names.head = {{.weight = untied ? head + "decoder.weight" : names.token_table,
                   .bias = head + (untied && decoder_bias ? "decoder.bias" : "bias"),
                   .n_out = spec.vocab}};
  }
  return model;
}

}  // namespace sluice::impl
