#include "model/families.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/quote.h"

namespace sluice::impl {

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

MatrixNames lm_head(const ConfigReader& config, const WeightStore& weights,
                    const std::string& token_table, int64_t vocab, bool tied_by_default) {
  const bool tied = config.bool_or("tie_word_embeddings", tied_by_default);
  if (!tied) weights.require("lm_head.weight");  // an Error that names it
  const bool bias = weights.find("lm_head.bias") != nullptr;
  return {{.weight = tied ? token_table : "lm_head.weight",
           .bias = bias ? "lm_head.bias" : "",
           .n_out = vocab}};
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

void read_gpt_sizes(const GgufFile& file, const std::string& architecture, ModelSpec& spec) {
  const auto size = [&](const char* key, int64_t max) {
    return gguf_int(file, architecture + key, max);
  };
  spec.n_layers = size(".block_count", kMaxLayers);
  spec.d_model = spec.d_embed = size(".embedding_length", kMaxWidth);
  spec.n_heads = spec.n_kv_heads = size(".attention.head_count", spec.d_model);
  if (spec.d_model % spec.n_heads != 0)
    throw Error(file.path.string() + ": head_count does not divide embedding_length", kGgufHint);
  spec.head_dim = spec.d_model / spec.n_heads;
  spec.d_inner = size(".feed_forward_length", kMaxWidth);
  spec.max_positions = size(".context_length", kMaxPositions);
  spec.norm_epsilon = gguf_epsilon(file, architecture + ".attention.layer_norm_epsilon");
}

void read_hidden_sizes(const ConfigReader& config, std::string_view inner_key, ModelSpec& spec) {
  spec.n_layers = config.require_int("num_hidden_layers", 1, kMaxLayers);
  spec.d_model = spec.d_embed = config.require_int("hidden_size", 1, kMaxWidth);
  spec.n_heads = spec.n_kv_heads = config.require_int("num_attention_heads", 1, spec.d_model);
  if (spec.d_model % spec.n_heads != 0)
    config.refuse("num_attention_heads", "a divisor of `hidden_size`");
  spec.head_dim = spec.d_model / spec.n_heads;
  spec.d_inner = config.require_int(inner_key, 1, kMaxWidth);
  spec.vocab = config.require_int("vocab_size", 1, kMaxVocab);
}

int64_t gguf_int(const GgufFile& file, const std::string& key, int64_t max,
                 std::optional<int64_t> fallback) {
  const int64_t value = fallback ? file.find_int(key).value_or(*fallback) : file.require_int(key);
  if (value < 1 || value > max)
    throw Error(file.path.string() + ": `" + key + "` is " + std::to_string(value) +
                    ", expected 1 to " + std::to_string(max),
                kGgufHint);
  return value;
}

float gguf_epsilon(const GgufFile& file, const std::string& key) {
  const double value = file.require_float(key);
  if (value < 0 || value > 1)
    throw Error(
        file.path.string() + ": `" + key + "` is " + std::to_string(value) + ", expected 0 to 1",
        kGgufHint);
  return static_cast<float>(value);
}

double gguf_positive(const GgufFile& file, std::string_view what, double value) {
  if (!(value > 1e-6 && value < 1e15))
    throw Error(
        fmt::format("{}: `{}` is {}, expected a positive number", file.path.string(), what, value),
        kGgufHint);
  return value;
}

MatrixNames gguf_head(const GgufFile& file, const std::string& token_table, int64_t vocab) {
  const bool untied = file.weights.find("output.weight") != nullptr;
  return {{.weight = untied ? "output.weight" : token_table, .bias = "", .n_out = vocab}};
}

std::vector<int32_t> eos_ids(const ConfigReader& config) {
  std::vector<int32_t> ids;
  for (const int64_t id : config.ints("eos_token_id", 0, kMaxVocab))
    ids.push_back(static_cast<int32_t>(id));
  return ids;
}

namespace {

// A file with more layers than its config admits is not the config's.
ModelDescription checked(ModelDescription model, const WeightStore& weights) {
  const int64_t n_layers = model.spec.n_layers;
  std::string next = model.names.layers.back().qkv.front().weight;
  const std::string last = "." + std::to_string(n_layers - 1) + ".";
  const size_t at = next.find(last);
  SLUICE_CHECK(at != next.npos);
  next.replace(at, last.size(), "." + std::to_string(n_layers) + ".");
  if (const StoredTensor* more = weights.find(next))
    throw Error(weights.label_of(*more) + " is stored too, but the config states " +
                    std::to_string(n_layers) + " layers",
                "are config and weights from one checkpoint?");
  return model;
}

ModelDescription describe_any(const ConfigReader& config, const WeightStore& weights) {
  const std::string type = config.require_string("model_type");
  if (type == "gpt2") return describe_gpt2(config, weights);
  if (type == "gptj") return describe_gptj(config, weights);
  if (type == "opt") return describe_opt(config, weights);
  for (const char* llama : {"llama", "mistral", "qwen2", "qwen3", "smollm3"})
    if (type == llama) return describe_llama(config, weights);
  if (type == "phi3") return describe_phi3(config, weights);
  if (type == "gpt_neox") return describe_gpt_neox(config, weights);
  if (type == "gemma2" || type == "gemma3" || type == "gemma3_text")
    return describe_gemma(config, weights);
  if (type == "bert") return describe_bert(config, weights);
  if (type == "esm") return describe_esm2(config, weights);
  const char* known =
      "gpt2, gptj, gpt_neox, opt, llama, mistral, qwen2, qwen3, smollm3, phi3, gemma2, gemma3, "
      "gemma3_text, bert or esm";
  for (const char* experts : {"mixtral", "qwen2_moe", "qwen3_moe", "phimoe"})
    if (type == experts)
      config.refuse("model_type", known, "mixtures of experts are not supported yet");
  config.refuse("model_type", known, "this family is not supported yet");
}

ModelDescription describe_any(const GgufFile& file) {
  const std::string& architecture = file.require_string("general.architecture");
  if (architecture == "gpt2") return describe_gpt2(file);
  for (const char* llama : {"llama", "qwen2", "qwen3", "smollm3"})
    if (architecture == llama) return describe_llama(file, architecture);
  if (architecture == "gemma2" || architecture == "gemma3") return describe_gemma(file);
  if (architecture == "phi3") return describe_phi3(file);
  if (architecture == "gptneox") return describe_gpt_neox(file);
  throw Error(file.path.string() + ": `general.architecture` is " + quote(architecture) +
                  ", expected gemma2, gemma3, gpt2, gptneox, llama, phi3, qwen2, qwen3 or smollm3",
              "for another family use its Hugging Face folder");
}

}  // namespace

ModelDescription describe(const ConfigReader& config, const WeightStore& weights) {
  return checked(describe_any(config, weights), weights);
}

ModelDescription describe(const GgufFile& file) {
  return checked(describe_any(file), file.weights);
}

}  // namespace sluice::impl
