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
