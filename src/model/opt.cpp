// OPT: learned positions with an offset of two, ReLU; the 350m variant normalises after each
// block and has a token table narrower than the model.

#include <fmt/format.h>

#include "model/families.h"

namespace sluice::impl {

ModelDescription describe_opt(const ConfigReader& config, const WeightStore& weights) {
  ModelDescription model;
  ModelSpec& spec = model.spec;
  spec.family = "opt";
  read_hidden_sizes(config, "ffn_dim", spec);
  spec.d_embed = config.int_or("word_embed_proj_dim", spec.d_model, 1, kMaxWidth);
  spec.max_positions = config.require_int("max_position_embeddings", 1, kMaxPositions);
  spec.position_offset = 2;
  const bool pre_norm = config.bool_or("do_layer_norm_before", true);
  spec.block = pre_norm ? BlockKind::kPreNorm : BlockKind::kPostNorm;
  spec.activation = activation_named(config, "activation_function", "relu");
  spec.eos_ids = eos_ids(config);

  const bool bias = config.bool_or("enable_bias", true);
  const bool affine = config.bool_or("layer_norm_elementwise_affine", true);
  const auto norm = [&](const std::string& stem) {
    return affine ? norm_named(stem) : NormNames{.weight = "", .bias = "", .exists = true};
  };
  WeightNames& names = model.names;
  const std::string prefix =
      find_prefix(weights, {"model.decoder.", "decoder."}, "embed_tokens.weight");
  names.token_table = prefix + "embed_tokens.weight";
  names.position_table = prefix + "embed_positions.weight";
  if (spec.d_embed != spec.d_model) {
    names.project_in = {linear_named(prefix + "project_in", spec.d_model, false)};
    names.head_transform = {linear_named(prefix + "project_out", spec.d_embed, false)};
  }
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    const std::string stem = fmt::format("{}layers.{}.", prefix, layer);
    names.layers.push_back(
        {.attention_norm = norm(stem + "self_attn_layer_norm"),
         .mlp_norm = norm(stem + "final_layer_norm"),
         .qkv = {linear_named(stem + "self_attn.q_proj", spec.d_model, bias),
                 linear_named(stem + "self_attn.k_proj", spec.d_model, bias),
                 linear_named(stem + "self_attn.v_proj", spec.d_model, bias)},
         .attention_out = {linear_named(stem + "self_attn.out_proj", spec.d_model, bias)},
         .mlp_in = {linear_named(stem + "fc1", spec.d_inner, bias)},
         .mlp_out = {linear_named(stem + "fc2", spec.d_model, bias)}});
  }
  if (pre_norm && !config.bool_or("_remove_final_layer_norm", false))
    names.final_norm = norm(prefix + "final_layer_norm");
  names.head = lm_head(config, weights, names.token_table, spec.vocab, true);
  return model;
}

}  // namespace sluice::impl
