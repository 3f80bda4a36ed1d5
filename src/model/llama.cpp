// Llama and its relatives: Llama 1-3, TinyLlama, SmolLM, Mistral (sliding window), Qwen2 (biased
// queries, keys and values).

#include <fmt/format.h>

#include "core/error.h"
#include "core/quote.h"
#include "model/families.h"
#include "model/rotary.h"

namespace sluice::impl {
namespace {

// transformers 5 writes `rope_parameters`, earlier versions `rope_scaling` and `rope_theta`;
// the kind is `rope_type`, or `type` in the oldest files.
RotarySpec read_rotary(const ConfigReader& config, int64_t dim, int64_t max_positions) {
  RotarySpec rotary;
  rotary.dim = dim;
  rotary.base = config.float_or("rope_theta", 10000, 1, 1e15);
  const auto parameters = config.object("rope_parameters");
  const auto object = parameters ? parameters : config.object("rope_scaling");
  if (!object) return rotary;
  rotary.base = object->float_or("rope_theta", rotary.base, 1, 1e15);
  const std::string kind_key = object->has("rope_type") ? "rope_type" : "type";
  const std::string kind = object->string_or(kind_key, "default");
  RotaryScaling& scaling = rotary.scaling;
  if (kind == "default") return rotary;
  scaling.factor = object->require_float("factor", 1, 1e6);
  scaling.original_positions =
      object->int_or("original_max_position_embeddings", max_positions, 1, kMaxPositions);
  if (kind == "linear") {
    scaling.kind = RotaryScaling::Kind::kLinear;
  } else if (kind == "dynamic") {
    scaling.kind = RotaryScaling::Kind::kDynamic;
    scaling.original_positions = max_positions;
  } else if (kind == "llama3") {
    scaling.kind = RotaryScaling::Kind::kLlama3;
    scaling.low_frequency_factor = object->require_float("low_freq_factor", 1e-6, 1e6);
    scaling.high_frequency_factor =
        object->require_float("high_freq_factor", scaling.low_frequency_factor, 1e6);
  } else {
    object->refuse(kind_key, "default, linear, dynamic or llama3");
  }
  return rotary;
}

// Mistral has one window for all layers; Qwen2 uses it from layer `max_window_layers` on, and
// newer files say it layer by layer in `layer_types`.
std::vector<int64_t> read_windows(const ConfigReader& config, const ModelSpec& spec) {
  if (!config.has("sliding_window") || spec.family == "llama") return {};
  if (spec.family == "qwen2" && !config.bool_or("use_sliding_window", false)) return {};
  const int64_t window = config.require_int("sliding_window", 1, kMaxPositions);
  std::vector<int64_t> windows(static_cast<size_t>(spec.n_layers), window);
  const std::vector<std::string> types = config.strings("layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != spec.n_layers)
    config.refuse("layer_types", fmt::format("one entry for each of {} layers", spec.n_layers));
  const int64_t first =
      spec.family == "qwen2" ? config.int_or("max_window_layers", 28, 0, kMaxLayers) : 0;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    const auto i = static_cast<size_t>(layer);
    const bool sliding = types.empty() ? layer >= first : types[i] == "sliding_attention";
    if (!sliding) windows[i] = 0;
  }
  return windows;
}

struct NameStyle {
  const char *layer, *attention_norm, *mlp_norm, *q, *k, *v, *o, *gate, *up, *down;
};

LayerNames layer_names(const NameStyle& style, int64_t layer, const ModelSpec& spec, bool qkv_bias,
                       bool out_bias, bool mlp_bias) {
  const std::string stem = fmt::format(fmt::runtime(style.layer), layer);
  return {.attention_norm = rms_norm_named(stem + style.attention_norm),
          .mlp_norm = rms_norm_named(stem + style.mlp_norm),
          .qkv = {linear_named(stem + style.q, spec.query_width(), qkv_bias),
                  linear_named(stem + style.k, spec.kv_width(), qkv_bias),
                  linear_named(stem + style.v, spec.kv_width(), qkv_bias)},
          .attention_out = {linear_named(stem + style.o, spec.d_model, out_bias)},
          .mlp_in = {linear_named(stem + style.gate, spec.d_inner, mlp_bias),
                     linear_named(stem + style.up, spec.d_inner, mlp_bias)},
          .mlp_out = {linear_named(stem + style.down, spec.d_model, mlp_bias)}};
}

ModelSpec blank_llama() {
  ModelSpec spec;
  spec.norm = NormKind::kRms;
  spec.gated = true;
  spec.position = PositionKind::kRotary;
  return spec;
}

}  // namespace

ModelDescription describe_llama(const ConfigReader& config, const WeightStore& weights) {
  ModelDescription model;
  ModelSpec& spec = model.spec = blank_llama();
  spec.family = config.require_string("model_type");
  spec.n_layers = config.require_int("num_hidden_layers", 1, kMaxLayers);
  spec.d_model = spec.d_embed = config.require_int("hidden_size", 1, kMaxWidth);
  spec.n_heads = config.require_int("num_attention_heads", 1, kMaxWidth);
  spec.n_kv_heads = config.int_or("num_key_value_heads", spec.n_heads, 1, spec.n_heads);
  if (spec.n_heads % spec.n_kv_heads != 0)
    config.refuse("num_key_value_heads", "a divisor of `num_attention_heads`");
  if (!config.has("head_dim") && spec.d_model % spec.n_heads != 0)
    config.refuse("num_attention_heads", "a divisor of `hidden_size`, or a `head_dim`");
  spec.head_dim = config.int_or("head_dim", spec.d_model / spec.n_heads, 1, 65536);
  if (spec.head_dim % 2 != 0) config.refuse("head_dim", "an even number");
  spec.d_inner = config.require_int("intermediate_size", 1, kMaxWidth);
  spec.vocab = config.require_int("vocab_size", 1, kMaxVocab);
  spec.max_positions = config.int_or("max_position_embeddings", 2048, 1, kMaxPositions);
  spec.norm_epsilon = static_cast<float>(config.float_or("rms_norm_eps", 1e-6, 0, 1));
  spec.activation = activation_named(config, "hidden_act", "silu");
  spec.rotary = read_rotary(config, spec.head_dim, spec.max_positions);
  // Dynamic scaling states the length of training and stretches to whatever is asked for.
  if (spec.rotary.scaling.kind == RotaryScaling::Kind::kDynamic) {
    spec.default_context = spec.max_positions;
    spec.max_positions = kMaxPositions;
  }
  spec.windows = read_windows(config, spec);
  spec.eos_ids = eos_ids(config);

  WeightNames& names = model.names;
  const std::string prefix = find_prefix(weights, {"model.", ""}, "embed_tokens.weight");
  names.token_table = prefix + "embed_tokens.weight";
  const std::string layer_stem = prefix + "layers.{}.";
  const NameStyle style = {layer_stem.c_str(), "input_layernorm",  "post_attention_layernorm",
                           "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                           "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                           "mlp.down_proj"};
  const bool attention_bias = config.bool_or("attention_bias", false);
  const bool mlp_bias = config.bool_or("mlp_bias", false);
  const bool qwen2 = spec.family == "qwen2";
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    names.layers.push_back(layer_names(style, layer, spec, attention_bias || qwen2,
                                       attention_bias && !qwen2, mlp_bias));
  names.final_norm = rms_norm_named(prefix + "norm");
  names.head = lm_head(config, weights, names.token_table, spec.vocab, false);
  return model;
}

ModelDescription describe_llama(const GgufFile& file) {
  ModelDescription model;
  ModelSpec& spec = model.spec = blank_llama();
  spec.family = "llama";
  spec.n_layers = gguf_int(file, "llama.block_count", kMaxLayers);
  spec.d_model = spec.d_embed = gguf_int(file, "llama.embedding_length", kMaxWidth);
  spec.n_heads = gguf_int(file, "llama.attention.head_count", kMaxWidth);
  spec.n_kv_heads = gguf_int(file, "llama.attention.head_count_kv", spec.n_heads, spec.n_heads);
  spec.head_dim = gguf_int(file, "llama.attention.key_length", 65536, spec.d_model / spec.n_heads);
  if (spec.n_heads % spec.n_kv_heads != 0 || spec.head_dim % 2 != 0)
    throw Error(fmt::format("{}: {} heads, {} key/value heads and head_dim {} do not fit together",
                            file.path.string(), spec.n_heads, spec.n_kv_heads, spec.head_dim),
                "was the file written by a current converter?");
  spec.d_inner = gguf_int(file, "llama.feed_forward_length", kMaxWidth);
  spec.max_positions = gguf_int(file, "llama.context_length", kMaxPositions);
  spec.norm_epsilon = gguf_epsilon(file, "llama.attention.layer_norm_rms_epsilon");
  spec.activation = Activation::kSilu;
  // llama.cpp stores the rows of Q and K so that rotary pairs are neighbours.
  spec.rotary.style = RotaryStyle::kInterleaved;
  spec.rotary.dim = gguf_int(file, "llama.rope.dimension_count", spec.head_dim, spec.head_dim);
  if (spec.rotary.dim % 2 != 0)
    throw Error(file.path.string() + ": `llama.rope.dimension_count` is odd",
                "was the file written by a current converter?");
  spec.rotary.base = file.find_float("llama.rope.freq_base").value_or(10000);
  const auto require_positive = [&](const char* what, double value) {
    if (!(value > 1e-6 && value < 1e15))
      throw Error(fmt::format("{}: `{}` is {}, expected a positive number", file.path.string(),
                              what, value),
                  "was the file written by a current converter?");
  };
  require_positive("llama.rope.freq_base", spec.rotary.base);
  RotaryScaling& scaling = spec.rotary.scaling;
  if (const GgufValue* type = file.find("llama.rope.scaling.type"); type != nullptr) {
    const std::string& kind = file.require_string("llama.rope.scaling.type");
    if (kind == "linear") {
      scaling.kind = RotaryScaling::Kind::kLinear;
      scaling.factor = file.require_float("llama.rope.scaling.factor");
      require_positive("llama.rope.scaling.factor", scaling.factor);
    } else if (kind != "none") {
      throw Error(fmt::format("{}: `llama.rope.scaling.type` is {}, expected none or linear",
                              file.path.string(), quote(kind)),
                  "use the model's Hugging Face folder");
    }
  }
  if (const StoredTensor* divisors = file.weights.find("rope_freqs.weight"); divisors != nullptr) {
    if (divisors->shape.numel() != spec.rotary.dim / 2)
      throw Error(fmt::format("{}: rope_freqs.weight is {}, expected ({})", file.path.string(),
                              divisors->shape.str(), spec.rotary.dim / 2),
                  "was the file written by a current converter?");
    std::vector<float> values(static_cast<size_t>(spec.rotary.dim / 2));
    expand(*divisors, 0, values);
    for (const float value : values) require_positive("rope_freqs.weight", value);
    spec.rotary.frequencies = rotary_frequencies(spec.rotary, 0);
    for (size_t i = 0; i < values.size(); ++i) spec.rotary.frequencies[i] /= values[i];
  }

  WeightNames& names = model.names;
  names.token_table = "token_embd.weight";
  spec.vocab = file.weights.require(names.token_table).shape[0];
  const NameStyle style = {"blk.{}.", "attn_norm",   "ffn_norm", "attn_q", "attn_k",
                           "attn_v",  "attn_output", "ffn_gate", "ffn_up", "ffn_down"};
  const bool qkv_bias = file.weights.find("blk.0.attn_q.bias") != nullptr;
  const bool out_bias = file.weights.find("blk.0.attn_output.bias") != nullptr;
  const bool mlp_bias = file.weights.find("blk.0.ffn_up.bias") != nullptr;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    names.layers.push_back(layer_names(style, layer, spec, qkv_bias, out_bias, mlp_bias));
  names.final_norm = rms_norm_named("output_norm");
  const bool untied = file.weights.find("output.weight") != nullptr;
  names.head = {
      {.weight = untied ? "output.weight" : names.token_table, .bias = "", .n_out = spec.vocab}};
  return model;
}

}  // namespace sluice::impl
