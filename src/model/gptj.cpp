// GPT-J: interleaved rotary embedding on part of each head, attention and MLP in parallel.

#include <fmt/format.h>

#include "model/families.h"

namespace sluice {

ModelDescription describe_gptj(const ConfigReader& config, const WeightStore& weights) {
  ModelDescription model;
  ModelSpec& spec = model.spec;
  spec.family = "gptj";
  spec.n_layers = config.require_int("n_layer", 1, kMaxLayers);
  spec.d_model = spec.d_embed = config.require_int("n_embd", 1, kMaxWidth);
  spec.n_heads = spec.n_kv_heads = config.require_int("n_head", 1, spec.d_model);
  if (spec.d_model % spec.n_heads != 0) config.refuse("n_head", "a divisor of `n_embd`");
  spec.head_dim = spec.d_model / spec.n_heads;
  spec.d_inner = config.int_or("n_inner", 4 * spec.d_model, 1, kMaxWidth);
  spec.vocab = config.require_int("vocab_size", 1, kMaxVocab);
  spec.max_positions = config.require_int("n_positions", 1, kMaxPositions);
  spec.block = BlockKind::kParallel;
  spec.norm_epsilon = static_cast<float>(config.float_or("layer_norm_epsilon", 1e-5, 0, 1));
  spec.activation = activation_named(config, "activation_function", "gelu_new");
  spec.position = PositionKind::kRotary;
  spec.rotary.style = RotaryStyle::kInterleaved;
  spec.rotary.dim = config.int_or("rotary_dim", spec.head_dim, 2, spec.head_dim);
  if (spec.rotary.dim % 2 != 0) config.refuse("rotary_dim", "an even number");
  spec.eos_ids = eos_ids(config);

  WeightNames& names = model.names;
  const std::string prefix = find_prefix(weights, {"transformer.", ""}, "wte.weight");
  names.token_table = prefix + "wte.weight";
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    const std::string stem = fmt::format("{}h.{}.", prefix, layer);
    names.layers.push_back(
        {.attention_norm = norm_named(stem + "ln_1"),
         .mlp_norm = {},
         .qkv = {linear_named(stem + "attn.q_proj", spec.d_model, false),
                 linear_named(stem + "attn.k_proj", spec.d_model, false),
                 linear_named(stem + "attn.v_proj", spec.d_model, false)},
         .attention_out = {linear_named(stem + "attn.out_proj", spec.d_model, false)},
         .mlp_in = {linear_named(stem + "mlp.fc_in", spec.d_inner)},
         .mlp_out = {linear_named(stem + "mlp.fc_out", spec.d_model)}});
  }
  names.final_norm = norm_named(prefix + "ln_f");
  const bool untied = weights.find("lm_head.weight") != nullptr;
  const bool bias = weights.find("lm_head.bias") != nullptr;
  names.head = {{.weight = untied ? "lm_head.weight" : names.token_table,
                 .bias = bias ? "lm_head.bias" : "",
                 .n_out = spec.vocab}};
  return model;
}

}  // namespace sluice
