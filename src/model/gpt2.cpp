// GPT-2: learned positions, pre-norm blocks, Conv1D weights stored (n_in, n_out).

#include <fmt/format.h>

#include "core/error.h"
#include "model/families.h"

namespace sluice::impl {
namespace {

MatrixPart conv1d(const std::string& stem, int64_t n_out) {
  MatrixPart part = linear_named(stem, n_out);
  part.transposed = true;
  return part;
}

}  // namespace

ModelDescription describe_gpt2(const ConfigReader& config, const WeightStore& weights) {
  ModelDescription model;
  ModelSpec& spec = model.spec;
  spec.family = "gpt2";
  read_gpt_sizes(config, spec);
  spec.scale_by_layer = config.bool_or("scale_attn_by_inverse_layer_idx", false);
  spec.scale_attention = config.bool_or("scale_attn_weights", true);
  spec.eos_ids = eos_ids(config);

  WeightNames& names = model.names;
  const std::string prefix = find_prefix(weights, {"transformer.", ""}, "wte.weight");
  names.token_table = prefix + "wte.weight";
  names.position_table = prefix + "wpe.weight";
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    const std::string stem = fmt::format("{}h.{}.", prefix, layer);
    names.layers.push_back({.attention_norm = norm_named(stem + "ln_1"),
                            .mlp_norm = norm_named(stem + "ln_2"),
                            .qkv = {conv1d(stem + "attn.c_attn", 3 * spec.d_model)},
                            .attention_out = {conv1d(stem + "attn.c_proj", spec.d_model)},
                            .mlp_in = {conv1d(stem + "mlp.c_fc", spec.d_inner)},
                            .mlp_out = {conv1d(stem + "mlp.c_proj", spec.d_model)}});
  }
  names.final_norm = norm_named(prefix + "ln_f");
  names.head = lm_head(config, weights, names.token_table, spec.vocab, true);
  return model;
}

ModelDescription describe_gpt2(const GgufFile& file) {
  ModelDescription model;
  ModelSpec& spec = model.spec;
  spec.family = "gpt2";
  read_gpt_sizes(file, "gpt2", spec);
  spec.activation = Activation::kGeluTanh;

  WeightNames& names = model.names;
  names.token_table = "token_embd.weight";
  spec.vocab = file.weights.require(names.token_table).shape[0];
  names.position_table = "position_embd.weight";
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    const std::string stem = fmt::format("blk.{}.", layer);
    names.layers.push_back({.attention_norm = norm_named(stem + "attn_norm"),
                            .mlp_norm = norm_named(stem + "ffn_norm"),
                            .qkv = {linear_named(stem + "attn_qkv", 3 * spec.d_model)},
                            .attention_out = {linear_named(stem + "attn_output", spec.d_model)},
                            .mlp_in = {linear_named(stem + "ffn_up", spec.d_inner)},
                            .mlp_out = {linear_named(stem + "ffn_down", spec.d_model)}});
  }
  names.final_norm = norm_named("output_norm");
  names.head = gguf_head(file, names.token_table, spec.vocab);
  return model;
}

}  // namespace sluice::impl
