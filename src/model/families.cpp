#include "model/families.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {

Activation activation_named(const ConfigReader& config, std::string_view key,
                            std::string_view fallback) {
  const std::string name = config.string_or(key, fallback);
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu") return Activation::kGeluErf;
  if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh")
    return Activation::kGeluTanh;
  if (name == "silu" || name == "swish") return Activation::kSilu;
  config.refuse(key, "relu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, silu or swish");
}

std::string find_prefix(const WeightStore& weights,
                        std::initializer_list<std::string_view> prefixes, std::string_view name) {
  for (const std::string_view prefix : prefixes) {
    std::string full = std::string(prefix) + std::string(name);
    if (weights.find(full) != nullptr) return std::string(prefix);
  }
  weights.require(std::string(*prefixes.begin()) + std::string(name));  // throws, naming it
  return {};
}

NormNames norm_named(const std::string& stem) { return {stem + ".weight", stem + ".bias", true}; }
NormNames norm_named(const WeightStore& weights, const std::string& stem) {
  if (weights.find(stem + ".gamma") == nullptr) return norm_named(stem);
  return {stem + ".gamma", stem + ".beta", true};
}
NormNames rms_norm_named(const std::string& stem) { return {stem + ".weight", "", true}; }

MatrixPart linear_named(const std::string& stem, int64_t n_out, bool bias) {
  return {.weight = stem + ".weight", .bias = bias ? stem + ".bias" : "", .n_out = n_out};
}

LayerNames encoder_layer_names(const std::string& stem, const ModelSpec& spec) {
  LayerNames names;
  names.qkv = {linear_named(stem + "attention.self.query", spec.d_model),
               linear_named(stem + "attention.self.key", spec.d_model),
               linear_named(stem + "attention.self.value", spec.d_model)};
  names.attention_out = {linear_named(stem + "attention.output.dense", spec.d_model)};
  names.mlp_in = {linear_named(stem + "intermediate.dense", spec.d_inner)};
  names.mlp_out = {linear_named(stem + "output.dense", spec.d_model)};
  return names;
}

void read_gpt_sizes(const ConfigReader& config, ModelSpec& spec) {
  spec.n_layers = config.require_int("n_layer", 1, kMaxLayers);
  spec.d_model = spec.d_embed = config.require_int("n_embd", 1, kMaxWidth);
  spec.n_heads = spec.n_kv_heads = config.require_int("n_head", 1, spec.d_model);
  if (spec.d_model % spec.n_heads != 0) config.refuse("n_head", "a divisor of `n_embd`");
  spec.head_dim = spec.d_model / spec.n_heads;
  spec.d_inner = config.int_or("n_inner", 4 * spec.d_model, 1, kMaxWidth);
  spec.vocab = config.require_int("vocab_size", 1, kMaxVocab);
  spec.max_positions = config.require_int("n_positions", 1, kMaxPositions);
  spec.norm_epsilon = static_cast<float>(config.float_or("layer_norm_epsilon", 1e-5, 0, 1));
  spec.activation = activation_named(config, "activation_function", "gelu_new");
}

std::vector<int32_t> eos_ids(const ConfigReader& config) {
  std::vector<int32_t> ids;
  for (const int64_t id : config.ints("eos_token_id", 0, kMaxVocab))
    ids.push_back(static_cast<int32_t>(id));
  return ids;
}

ModelDescription describe(const ConfigReader& config, const WeightStore& weights) {
  const std::string type = config.require_string("model_type");
  if (type == "gpt2") return describe_gpt2(config, weights);
  if (type == "gptj") return describe_gptj(config, weights);
  if (type == "opt") return describe_opt(config, weights);
  if (type == "llama" || type == "mistral" || type == "qwen2")
    return describe_llama(config, weights);
  if (type == "bert") return describe_bert(config, weights);
  if (type == "esm") return describe_esm2(config, weights);
  config.refuse("model_type", "gpt2, gptj, opt, llama, mistral, qwen2, bert or esm",
                "this family is not supported yet");
}

ModelDescription describe(const GgufFile& file) {
  const std::string& architecture = file.require_string("general.architecture");
  if (architecture == "gpt2") return describe_gpt2(file);
  if (architecture == "llama") return describe_llama(file);
  throw Error(file.path.string() + ": `general.architecture` is \"" + architecture +
                  "\", expected gpt2 or llama",
              "for another family use its Hugging Face folder");
}

}  // namespace sluice
