// GPT-J: interleaved rotary embedding on part of each head, attention and MLP in parallel.

#include <fmt/format.h>

#include "model/families.h"

namespace sluice::impl {

ModelDescription describe_gptj(const ConfigReader& config, const WeightStore& weights) {
  ModelDescription model;
  ModelSpec& spec = model.spec;
  spec.family = "gptj";
  read_gpt_sizes(config, spec);
  spec.block = BlockKind::kParallel;
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
  names.head = lm_head(config, weights, names.token_table, spec.vocab, false);
  return model;
}

}  // namespace sluice::impl
