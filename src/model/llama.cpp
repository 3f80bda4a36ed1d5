// Llama and its relatives as Hugging Face folders: Llama 1-3, TinyLlama, SmolLM, Mistral (sliding
// window), Qwen2 (biased queries, keys and values), Qwen3 (norms of their heads), SmolLM3 (layers
// without rotary embedding).

#include <fmt/format.h>

#include "model/families.h"

namespace sluice::impl {
namespace {

bool is_qwen(const ModelSpec& spec) { return spec.family == "qwen2" || spec.family == "qwen3"; }

// Mistral and Phi-3 have one window for all layers. Qwen uses it from layer `max_window_layers` on,
// SmolLM3 in layers without rotary embedding; newer files say it layer by layer in `layer_types`.
std::vector<int64_t> read_windows(const ConfigReader& config, const ModelSpec& spec) {
  if (!config.has("sliding_window") || spec.family == "llama") return {};
  const bool by_layer = is_qwen(spec) || spec.family == "smollm3";
  if (by_layer && !config.bool_or("use_sliding_window", false)) return {};
  const int64_t window = config.require_int("sliding_window", 1, kMaxPositions);
  std::vector<int64_t> windows(static_cast<size_t>(spec.n_layers), window);
  const std::vector<std::string> types = config.strings("layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != spec.n_layers)
    config.refuse("layer_types", fmt::format("one entry for each of {} layers", spec.n_layers));
  const int64_t first = is_qwen(spec) ? config.int_or("max_window_layers", 28, 0, kMaxLayers) : 0;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    const auto i = static_cast<size_t>(layer);
    const bool by_default = spec.family == "smollm3" ? !spec.rotates(layer) : layer >= first;
    if (!types.empty() && types[i] != "sliding_attention" && types[i] != "full_attention")
      config.refuse("layer_types", "sliding_attention or full_attention");
    const bool sliding = types.empty() ? by_default : types[i] == "sliding_attention";
    if (!sliding) windows[i] = 0;
  }
  return windows;
}

// `no_rope_layers` holds 1 for a layer that rotates, in spite of its name.
std::vector<bool> read_rotary_layers(const ConfigReader& config, int64_t n_layers) {
  const std::vector<int64_t> stated = config.ints("no_rope_layers", 0, 1);
  const int64_t interval = config.int_or("no_rope_layer_interval", 4, 1, kMaxLayers);
  if (!stated.empty() && static_cast<int64_t>(stated.size()) != n_layers)
    config.refuse("no_rope_layers", fmt::format("one entry for each of {} layers", n_layers));
  std::vector<bool> rotates;
  for (int64_t layer = 0; layer < n_layers; ++layer)
    rotates.push_back(stated.empty() ? (layer + 1) % interval != 0
                                     : stated[static_cast<size_t>(layer)] != 0);
  return rotates;
}

}  // namespace

LayerNames llama_layer_names(const LlamaNames& style, int64_t layer, const ModelSpec& spec,
                             const LlamaBiases& biases) {
  const std::string stem = fmt::format("{}{}.", style.layers, layer);
  const auto norm = [&](const char* name) {
    return *name == '\0' ? NormNames{} : rms_norm_named(stem + name);
  };
  return {.attention_norm = norm(style.attention_norm),
          .mlp_norm = norm(style.mlp_norm),
          .qkv = {linear_named(stem + style.q, spec.query_width(), biases.qkv),
                  linear_named(stem + style.k, spec.kv_width(), biases.qkv),
                  linear_named(stem + style.v, spec.kv_width(), biases.qkv)},
          .attention_out = {linear_named(stem + style.o, spec.d_model, biases.out)},
          .mlp_in = {linear_named(stem + style.gate, spec.d_inner, biases.mlp),
                     linear_named(stem + style.up, spec.d_inner, biases.mlp)},
          .mlp_out = {linear_named(stem + style.down, spec.d_model, biases.mlp)},
          .query_norm = norm(style.q_norm),
          .key_norm = norm(style.k_norm)};
}

ModelSpec read_llama_spec(const ConfigReader& config) {
  ModelSpec spec;
  spec.family = config.require_string("model_type");
  spec.norm = NormKind::kRms;
  spec.gated = true;
  spec.n_layers = config.require_int("num_hidden_layers", 1, kMaxLayers);
  spec.d_model = spec.d_embed = config.require_int("hidden_size", 1, kMaxWidth);
  spec.n_heads = config.require_int("num_attention_heads", 1, kMaxWidth);
  spec.n_kv_heads = config.int_or("num_key_value_heads", spec.n_heads, 1, spec.n_heads);
  if (spec.n_heads % spec.n_kv_heads != 0)
    config.refuse("num_key_value_heads", "a divisor of `num_attention_heads`");
  const bool qwen3 = spec.family == "qwen3";  // whose heads are 128 wide unless it says otherwise
  if (!config.has("head_dim") && !qwen3 && spec.d_model % spec.n_heads != 0)
    config.refuse("num_attention_heads", "a divisor of `hidden_size`, or a `head_dim`");
  spec.head_dim = config.int_or("head_dim", qwen3 ? 128 : spec.d_model / spec.n_heads, 1, 65536);
  if (spec.head_dim % 2 != 0) config.refuse("head_dim", "an even number");
  spec.d_inner = config.require_int("intermediate_size", 1, kMaxWidth);
  spec.vocab = config.require_int("vocab_size", 1, kMaxVocab);
  spec.max_positions = config.int_or("max_position_embeddings", 2048, 1, kMaxPositions);
  spec.norm_epsilon = static_cast<float>(config.float_or("rms_norm_eps", 1e-6, 0, 1));
  spec.activation = activation_named(config, "hidden_act", "silu");
  const bool smollm3 = spec.family == "smollm3";
  read_rotary(config, spec, {.default_base = smollm3 ? 2e6 : 1e4});
  if (smollm3) spec.rotary_layers = read_rotary_layers(config, spec.n_layers);
  spec.windows = read_windows(config, spec);
  spec.eos_ids = eos_ids(config);
  return spec;
}

LlamaNames hub_llama_names(const char* layers) {
  return {.layers = layers,
          .attention_norm = "input_layernorm",
          .mlp_norm = "post_attention_layernorm",
          .q = "self_attn.q_proj",
          .k = "self_attn.k_proj",
          .v = "self_attn.v_proj",
          .o = "self_attn.o_proj",
          .gate = "mlp.gate_proj",
          .up = "mlp.up_proj",
          .down = "mlp.down_proj",
          .q_norm = "self_attn.q_norm",
          .k_norm = "self_attn.k_norm"};
}

ModelDescription describe_llama(const ConfigReader& config, const WeightStore& weights) {
  ModelDescription model;
  ModelSpec& spec = model.spec = read_llama_spec(config);
  WeightNames& names = model.names;
  const std::string prefix = find_prefix(weights, {"model.", ""}, "embed_tokens.weight");
  names.token_table = prefix + "embed_tokens.weight";
  const std::string layers = prefix + "layers.";
  LlamaNames style = hub_llama_names(layers.c_str());
  if (spec.family != "qwen3") style.q_norm = style.k_norm = "";
  const bool attention_bias = config.bool_or("attention_bias", false);
  const bool qwen2 = spec.family == "qwen2";
  const LlamaBiases biases = {.qkv = attention_bias || qwen2,
                              .out = attention_bias && !qwen2,
                              .mlp = config.bool_or("mlp_bias", false)};
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    names.layers.push_back(llama_layer_names(style, layer, spec, biases));
  names.final_norm = rms_norm_named(prefix + "norm");
  names.head = lm_head(config, weights, names.token_table, spec.vocab, spec.family == "smollm3");
  return model;
}

}  // namespace sluice::impl
