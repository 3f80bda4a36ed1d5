// Phi-3, 3.5 and 4: a Llama whose queries, keys and values are one stored matrix, as are gate and
// up; long-rope scaling, rotary embedding on part of each head.

#include <fmt/format.h>

#include "core/error.h"
#include "model/families.h"

namespace sluice::impl {
namespace {

struct Phi3Names {
  const char *layers, *attention_norm, *mlp_norm, *qkv, *o, *gate_up, *down;
};

LayerNames layer_names(const Phi3Names& style, int64_t layer, const ModelSpec& spec) {
  const std::string stem = fmt::format("{}{}.", style.layers, layer);
  const auto matrix = [&](const char* name, int64_t n_out) -> MatrixNames {
    return {linear_named(stem + name, n_out, false)};
  };
  return {.attention_norm = rms_norm_named(stem + style.attention_norm),
          .mlp_norm = rms_norm_named(stem + style.mlp_norm),
          .qkv = matrix(style.qkv, spec.query_width() + 2 * spec.kv_width()),
          .attention_out = matrix(style.o, spec.d_model),
          .mlp_in = matrix(style.gate_up, 2 * spec.d_inner),
          .mlp_out = matrix(style.down, spec.d_model)};
}

}  // namespace

ModelDescription describe_phi3(const ConfigReader& config, const WeightStore& weights) {
  ModelDescription model;
  const ModelSpec& spec = model.spec = read_llama_spec(config);
  WeightNames& names = model.names;
  const std::string prefix = find_prefix(weights, {"model.", ""}, "embed_tokens.weight");
  names.token_table = prefix + "embed_tokens.weight";
  const std::string layers = prefix + "layers.";
  const Phi3Names style = {.layers = layers.c_str(),
                           .attention_norm = "input_layernorm",
                           .mlp_norm = "post_attention_layernorm",
                           .qkv = "self_attn.qkv_proj",
                           .o = "self_attn.o_proj",
                           .gate_up = "mlp.gate_up_proj",
                           .down = "mlp.down_proj"};
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    names.layers.push_back(layer_names(style, layer, spec));
  names.final_norm = rms_norm_named(prefix + "norm");
  names.head = lm_head(config, weights, names.token_table, spec.vocab, false);
  return model;
}

ModelDescription describe_phi3(const GgufFile& file) {
  ModelDescription model;
  ModelSpec& spec = model.spec = read_llama_spec(file, "phi3");
  // 0 means none, as for a file without the key.
  const int64_t window = file.find_int("phi3.attention.sliding_window").value_or(0);
  if (window < 0 || window > kMaxPositions)
    throw Error(fmt::format("{}: `phi3.attention.sliding_window` is {}, expected 0 to {}",
                            file.path.string(), window, kMaxPositions),
                kGgufHint);
  if (window > 0) spec.windows.assign(static_cast<size_t>(spec.n_layers), window);
  WeightNames& names = model.names;
  names.token_table = "token_embd.weight";
  spec.vocab = file.weights.require(names.token_table).shape[0];
  const Phi3Names style = {.layers = "blk.",
                           .attention_norm = "attn_norm",
                           .mlp_norm = "ffn_norm",
                           .qkv = "attn_qkv",
                           .o = "attn_output",
                           .gate_up = "ffn_up",
                           .down = "ffn_down"};
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    names.layers.push_back(layer_names(style, layer, spec));
  names.final_norm = rms_norm_named("output_norm");
  names.head = gguf_head(file, names.token_table, spec.vocab);
  return model;
}

}  // namespace sluice::impl
