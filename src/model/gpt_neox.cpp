// GPT-NeoX and Pythia: rotary embedding on part of each head, attention and MLP in parallel with a
// norm each, or one after the other; queries, keys and values of a head lie together.

#include <fmt/format.h>

#include "core/error.h"
#include "model/families.h"

namespace sluice::impl {
namespace {

ModelSpec blank_neox() {
  ModelSpec spec;
  spec.family = "gpt_neox";
  spec.activation = Activation::kGeluErf;
  return spec;
}

// Rows (head, q or k or v, head_dim) of one stored matrix, as all queries, keys and values.
MatrixNames by_head(const std::string& stem, const ModelSpec& spec, bool bias) {
  MatrixNames names;
  for (int64_t which = 0; which < 3; ++which)
    for (int64_t head = 0; head < spec.n_heads; ++head) {
      MatrixPart part = linear_named(stem, spec.head_dim, bias);
      part.first_row = (3 * head + which) * spec.head_dim;
      part.n_stored = 3 * spec.d_model;
      names.push_back(std::move(part));
    }
  return names;
}

}  // namespace

ModelDescription describe_gpt_neox(const ConfigReader& config, const WeightStore& weights) {
  ModelDescription model;
  ModelSpec& spec = model.spec = blank_neox();
  read_hidden_sizes(config, "intermediate_size", spec);
  spec.max_positions = config.int_or("max_position_embeddings", 2048, 1, kMaxPositions);
  spec.norm_epsilon = static_cast<float>(config.float_or("layer_norm_eps", 1e-5, 0, 1));
  spec.activation = activation_named(config, "hidden_act", "gelu");
  spec.block = config.bool_or("use_parallel_residual", true) ? BlockKind::kParallelNorms
                                                             : BlockKind::kPreNorm;
  read_rotary(config, spec,
              {.base = "rotary_emb_base", .part = "rotary_pct", .default_part = 0.25});
  spec.eos_ids = eos_ids(config);

  WeightNames& names = model.names;
  const std::string prefix = find_prefix(weights, {"gpt_neox.", ""}, "embed_in.weight");
  names.token_table = prefix + "embed_in.weight";
  const bool bias = config.bool_or("attention_bias", true);
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    const std::string stem = fmt::format("{}layers.{}.", prefix, layer);
    names.layers.push_back(
        {.attention_norm = norm_named(stem + "input_layernorm"),
         .mlp_norm = norm_named(stem + "post_attention_layernorm"),
         .qkv = by_head(stem + "attention.query_key_value", spec, bias),
         .attention_out = {linear_named(stem + "attention.dense", spec.d_model, bias)},
         .mlp_in = {linear_named(stem + "mlp.dense_h_to_4h", spec.d_inner)},
         .mlp_out = {linear_named(stem + "mlp.dense_4h_to_h", spec.d_model)}});
  }
  names.final_norm = norm_named(prefix + "final_layer_norm");
  if (weights.find("embed_out.weight") != nullptr)
    names.head = {linear_named("embed_out", spec.vocab, false)};
  else
    names.head = lm_head(config, weights, names.token_table, spec.vocab, false);
  return model;
}

// llama.cpp's converter brings queries, keys and values of all heads together.
ModelDescription describe_gpt_neox(const GgufFile& file) {
  ModelDescription model;
  ModelSpec& spec = model.spec = blank_neox();
  read_gpt_sizes(file, "gptneox", spec);
  spec.block = file.find_bool("gptneox.use_parallel_residual").value_or(true)
                   ? BlockKind::kParallelNorms
                   : BlockKind::kPreNorm;
  read_rotary(file, "gptneox", spec);

  WeightNames& names = model.names;
  names.token_table = "token_embd.weight";
  spec.vocab = file.weights.require(names.token_table).shape[0];
  const bool qkv_bias = file.weights.find("blk.0.attn_qkv.bias") != nullptr;
  const bool out_bias = file.weights.find("blk.0.attn_output.bias") != nullptr;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    const std::string stem = fmt::format("blk.{}.", layer);
    names.layers.push_back(
        {.attention_norm = norm_named(stem + "attn_norm"),
         .mlp_norm = norm_named(stem + "ffn_norm"),
         .qkv = {linear_named(stem + "attn_qkv", 3 * spec.d_model, qkv_bias)},
         .attention_out = {linear_named(stem + "attn_output", spec.d_model, out_bias)},
         .mlp_in = {linear_named(stem + "ffn_up", spec.d_inner)},
         .mlp_out = {linear_named(stem + "ffn_down", spec.d_model)}});
  }
  names.final_norm = norm_named("output_norm");
  names.head = gguf_head(file, names.token_table, spec.vocab);
  return model;
}

}  // namespace sluice::impl
