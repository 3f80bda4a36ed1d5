// Gemma 2 and Gemma 3 (text): scaled embeddings, RMS norms whose stored weights lack one, four of
// them to a block, local layers with a sliding window between global ones. Gemma 2 caps scores and
// logits; Gemma 3 norms the heads of queries and keys, and its local layers rotate by a base of
// their own.

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "model/families.h"

namespace sluice::impl {
namespace {

constexpr double kLocalBase = 10000;

ModelSpec blank_gemma() {
  ModelSpec spec;
  spec.block = BlockKind::kPrePostNorm;
  spec.norm = NormKind::kRms;
  spec.gated = true;
  spec.position = PositionKind::kRotary;
  spec.scale_embedding = true;
  return spec;
}

// Of every `pattern` layers the last is global.
std::vector<int64_t> windows_by(int64_t pattern, int64_t window, int64_t n_layers) {
  std::vector<int64_t> windows;
  for (int64_t layer = 0; layer < n_layers; ++layer)
    windows.push_back((layer + 1) % pattern == 0 ? 0 : window);
  return windows;
}

std::vector<int64_t> read_windows(const ConfigReader& config, int64_t n_layers, bool third) {
  const int64_t window = config.int_or("sliding_window", 4096, 1, kMaxPositions);
  const std::vector<std::string> types = config.strings("layer_types");
  if (types.empty()) {
    const char* key = config.has("_sliding_window_pattern") ? "_sliding_window_pattern"
                                                            : "sliding_window_pattern";
    return windows_by(third ? config.int_or(key, 6, 1, kMaxLayers) : 2, window, n_layers);
  }
  if (static_cast<int64_t>(types.size()) != n_layers)
    config.refuse("layer_types", fmt::format("one entry for each of {} layers", n_layers));
  std::vector<int64_t> windows;
  for (const std::string& type : types) {
    if (type != "sliding_attention" && type != "full_attention")
      config.refuse("layer_types", "sliding_attention or full_attention");
    windows.push_back(type == "sliding_attention" ? window : 0);
  }
  return windows;
}

// An object of `rope_parameters`, for one kind of layer.
RotarySpec rotary_from(const ConfigReader& object, double base, int64_t dim) {
  RotarySpec rotary;
  rotary.dim = dim;
  rotary.base = object.float_or("rope_theta", base, 1, 1e15);
  const std::string kind = object.string_or("rope_type", "default");
  if (kind == "linear") {
    rotary.scaling.kind = RotaryScaling::Kind::kLinear;
    rotary.scaling.factor = object.require_float("factor", 1, 1e6);
  } else if (kind != "default") {
    object.refuse("rope_type", "default or linear");
  }
  return rotary;
}

// transformers 5 writes an object for each kind of layer, earlier versions the global base and
// scaling on top, as other families do, and the local base next to them.
void read_rotaries(const ConfigReader& config, bool third, ModelSpec& spec) {
  const double base = third ? 1e6 : kLocalBase;
  const auto parameters = config.object("rope_parameters");
  const auto of_kind = [&](const char* kind) {
    return parameters ? parameters->object(kind) : std::nullopt;
  };
  if (const auto full = of_kind("full_attention"))
    spec.rotary = rotary_from(*full, base, spec.head_dim);
  else
    read_rotary(config, spec, {.default_base = base});
  if (const auto sliding = of_kind("sliding_attention")) {
    spec.local_rotary = rotary_from(*sliding, kLocalBase, spec.head_dim);
  } else if (third) {
    spec.local_rotary.emplace();
    spec.local_rotary->dim = spec.head_dim;
    spec.local_rotary->base = config.float_or("rope_local_base_freq", kLocalBase, 1, 1e15);
  }
}

// A cap that is absent has the family's habit; null is none.
float read_cap(const ConfigReader& config, const char* key, double fallback) {
  if (config.states(key) && !config.has(key)) return 0;
  const double cap = config.float_or(key, fallback, 0, 1e6);
  return static_cast<float>(cap);
}

// The number of a size, or the one that Gemma 3's configurations leave out.
struct Sizes {
  const ConfigReader& config;
  bool third;
  int64_t of(const char* key, int64_t left_out, int64_t max) const {
    return third ? config.int_or(key, left_out, 1, max) : config.require_int(key, 1, max);
  }
};

void read_spec(const ConfigReader& config, bool third, ModelSpec& spec) {
  const Sizes sizes{config, third};
  spec.n_layers = sizes.of("num_hidden_layers", 26, kMaxLayers);
  spec.d_model = spec.d_embed = sizes.of("hidden_size", 2304, kMaxWidth);
  spec.n_heads = sizes.of("num_attention_heads", 8, kMaxWidth);
  spec.n_kv_heads = sizes.of("num_key_value_heads", 4, spec.n_heads);
  if (spec.n_heads % spec.n_kv_heads != 0)
    config.refuse("num_key_value_heads", "a divisor of `num_attention_heads`");
  spec.head_dim = config.int_or("head_dim", 256, 1, 65536);
  if (spec.head_dim % 2 != 0) config.refuse("head_dim", "an even number");
  spec.d_inner = sizes.of("intermediate_size", 9216, kMaxWidth);
  spec.vocab = sizes.of("vocab_size", 262208, kMaxVocab);
  spec.max_positions =
      config.int_or("max_position_embeddings", third ? 131072 : 8192, 1, kMaxPositions);
  spec.norm_epsilon = static_cast<float>(config.float_or("rms_norm_eps", 1e-6, 0, 1));
  spec.activation = activation_named(config, "hidden_activation", "gelu_pytorch_tanh");
  spec.attention_factor = 1 / std::sqrt(config.float_or("query_pre_attn_scalar", 256, 1e-6, 1e12));
  // transformers leaves the scores of Gemma 3 as they are, whatever the config states.
  if (!third) spec.attention_cap = read_cap(config, "attn_logit_softcapping", 50);
  spec.logit_cap = read_cap(config, "final_logit_softcapping", third ? 0 : 30);
  spec.windows = read_windows(config, spec.n_layers, third);
  read_rotaries(config, third, spec);
  if (config.bool_or("use_bidirectional_attention", false))
    config.refuse("use_bidirectional_attention", "false", "this encoder is not supported");
}

// llama_layer_names() with the norms behind attention and MLP. plus_one: NormNames::plus_one.
struct GemmaNames {
  LlamaNames llama;
  const char *attention_post_norm, *mlp_post_norm;
  bool plus_one;

  NormNames norm(const std::string& stem) const {
    NormNames names = rms_norm_named(stem);
    names.plus_one = plus_one;
    return names;
  }
  LayerNames layer(int64_t index, const ModelSpec& spec, const LlamaBiases& biases) const {
    LayerNames names = llama_layer_names(llama, index, spec, biases);
    for (NormNames* of :
         {&names.attention_norm, &names.mlp_norm, &names.query_norm, &names.key_norm})
      of->plus_one = plus_one;
    const std::string stem = fmt::format("{}{}.", llama.layers, index);
    names.attention_post_norm = norm(stem + attention_post_norm);
    names.mlp_post_norm = norm(stem + mlp_post_norm);
    return names;
  }
};

// Keys of a GGUF file, "gemma2.NAME".
struct GemmaKeys {
  const GgufFile& file;
  std::string family;
  std::string key(const char* name) const { return family + "." + name; }
  int64_t integer(const char* name, int64_t max, std::optional<int64_t> fallback = {}) const {
    return gguf_int(file, key(name), max, fallback);
  }
  double positive(const char* name, double fallback) const {
    return gguf_positive(file, key(name), file.find_float(key(name)).value_or(fallback));
  }
  float cap(const char* name) const {  // absent: none
    return file.find_float(key(name)) ? static_cast<float>(positive(name, 0)) : 0;
  }
};

void read_spec(const GemmaKeys& keys, bool third, ModelSpec& spec) {
  spec.n_layers = keys.integer("block_count", kMaxLayers);
  spec.d_model = spec.d_embed = keys.integer("embedding_length", kMaxWidth);
  spec.n_heads = keys.integer("attention.head_count", kMaxWidth);
  spec.n_kv_heads = keys.integer("attention.head_count_kv", spec.n_heads, spec.n_heads);
  spec.head_dim = keys.integer("attention.key_length", 65536, 256);
  const int64_t value_dim = keys.integer("attention.value_length", 65536, spec.head_dim);
  if (spec.n_heads % spec.n_kv_heads != 0 || spec.head_dim % 2 != 0 || value_dim != spec.head_dim)
    throw Error(fmt::format("{}: {} heads, {} key/value heads, keys of {} and values of {} do not "
                            "fit together",
                            keys.file.path.string(), spec.n_heads, spec.n_kv_heads, spec.head_dim,
                            value_dim),
                kGgufHint);
  spec.d_inner = keys.integer("feed_forward_length", kMaxWidth);
  spec.max_positions = keys.integer("context_length", kMaxPositions);
  spec.norm_epsilon = gguf_epsilon(keys.file, keys.key("attention.layer_norm_rms_epsilon"));
  spec.activation = Activation::kGeluTanh;
  // The file does not state the divisor of scores. It is head_dim but in the largest model of each
  // family, which is told by its layers.
  const bool largest = spec.n_layers == (third ? 62 : 46);
  const int64_t divisor = largest ? spec.d_model / spec.n_heads : spec.head_dim;
  if (divisor < 1)
    throw Error(fmt::format("{}: {} heads in a width of {}", keys.file.path.string(), spec.n_heads,
                            spec.d_model),
                kGgufHint);
  spec.attention_factor = 1 / std::sqrt(static_cast<double>(divisor));
  spec.attention_cap = keys.cap("attn_logit_softcapping");
  spec.logit_cap = keys.cap("final_logit_softcapping");
  // Files of Gemma 3 without windows do not state any.
  if (!third || keys.file.find(keys.key("attention.sliding_window")) != nullptr)
    spec.windows =
        windows_by(third ? 6 : 2, keys.integer("attention.sliding_window", kMaxPositions, 4096),
                   spec.n_layers);
  read_rotary(keys.file, keys.family, spec);
  if (!third) return;
  spec.local_rotary.emplace();
  spec.local_rotary->dim = spec.rotary.dim;
  spec.local_rotary->base = keys.positive("rope.freq_base_swa", kLocalBase);
}

}  // namespace

ModelDescription describe_gemma(const ConfigReader& config, const WeightStore& weights) {
  ModelDescription model;
  ModelSpec& spec = model.spec = blank_gemma();
  spec.family = config.require_string("model_type");
  const bool third = spec.family != "gemma2";
  // Where the model reads images too, the text's part is an object of its own.
  const std::optional<ConfigReader> inner =
      spec.family == "gemma3" ? config.object("text_config") : std::nullopt;
  const ConfigReader& text = inner ? *inner : config;
  read_spec(text, third, spec);
  spec.eos_ids = eos_ids(config.has("eos_token_id") ? config : text);

  WeightNames& names = model.names;
  const std::string prefix =
      find_prefix(weights, {"model.", "model.language_model.", "language_model.model.", ""},
                  "embed_tokens.weight");
  names.token_table = prefix + "embed_tokens.weight";
  const std::string layers = prefix + "layers.";
  GemmaNames style = {.llama = hub_llama_names(layers.c_str()),
                      .attention_post_norm = "post_attention_layernorm",
                      .mlp_post_norm = "post_feedforward_layernorm",
                      .plus_one = true};
  style.llama.mlp_norm = "pre_feedforward_layernorm";
  if (!third) style.llama.q_norm = style.llama.k_norm = "";
  const bool bias = text.bool_or("attention_bias", false);
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    names.layers.push_back(style.layer(layer, spec, {.qkv = bias, .out = bias}));
  names.final_norm = style.norm(prefix + "norm");
  names.head = lm_head(text, weights, names.token_table, spec.vocab, true);
  return model;
}

ModelDescription describe_gemma(const GgufFile& file) {
  ModelDescription model;
  ModelSpec& spec = model.spec = blank_gemma();
  spec.family = file.require_string("general.architecture");
  const bool third = spec.family == "gemma3";
  read_spec(GemmaKeys{file, spec.family}, third, spec);

  WeightNames& names = model.names;
  names.token_table = "token_embd.weight";
  spec.vocab = file.weights.require(names.token_table).shape[0];
  GemmaNames style = {.llama = gguf_llama_names(),
                      .attention_post_norm = "post_attention_norm",
                      .mlp_post_norm = "post_ffw_norm",
                      .plus_one = false};  // llama.cpp's converter has added it
  if (!third) style.llama.q_norm = style.llama.k_norm = "";
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    names.layers.push_back(style.layer(layer, spec, {}));
  names.final_norm = style.norm("output_norm");
  names.head = gguf_head(file, names.token_table, spec.vocab);
  return model;
}

}  // namespace sluice::impl
