// One function per family: config (or GGUF metadata) and the stored names -> description.

#pragma once

#include <optional>

#include "io/config.h"
#include "io/gguf.h"
#include "io/weight_store.h"
#include "model/spec.h"

namespace sluice::impl {

ModelDescription describe_gpt2(const ConfigReader& config, const WeightStore& weights);
ModelDescription describe_gptj(const ConfigReader& config, const WeightStore& weights);
ModelDescription describe_opt(const ConfigReader& config, const WeightStore& weights);
ModelDescription describe_llama(const ConfigReader& config, const WeightStore& weights);
ModelDescription describe_phi3(const ConfigReader& config, const WeightStore& weights);
ModelDescription describe_gpt_neox(const ConfigReader& config, const WeightStore& weights);
ModelDescription describe_gemma(const ConfigReader& config, const WeightStore& weights);
ModelDescription describe_bert(const ConfigReader& config, const WeightStore& weights);
ModelDescription describe_esm2(const ConfigReader& config, const WeightStore& weights);

ModelDescription describe_gpt2(const GgufFile& file);
ModelDescription describe_gemma(const GgufFile& file);
ModelDescription describe_phi3(const GgufFile& file);
ModelDescription describe_gpt_neox(const GgufFile& file);
// architecture: llama, qwen2, qwen3 or smollm3.
ModelDescription describe_llama(const GgufFile& file, const std::string& architecture);

// Picks the family by `model_type` or `general.architecture`; an unknown one is an Error that
// lists the known.
ModelDescription describe(const ConfigReader& config, const WeightStore& weights);
ModelDescription describe(const GgufFile& file);

// Shared by the families.
Activation activation_named(const ConfigReader& config, std::string_view key,
                            std::string_view fallback);
// The first of `prefixes` under which `name` is stored; Error listing what is there otherwise.
std::string find_prefix(const WeightStore& weights,
                        std::initializer_list<std::string_view> prefixes, std::string_view name);
// stem.weight and stem.bias; older files of the encoders say gamma and beta.
NormNames norm_named(const std::string& stem);
NormNames norm_named(const WeightStore& weights, const std::string& stem);
NormNames rms_norm_named(const std::string& stem);  // stem.weight
// stem.weight and, when asked for, stem.bias.
MatrixPart linear_named(const std::string& stem, int64_t n_out, bool bias = true);
// lm_head.weight, or the token table where config.json (or, without a word there, the family's
// habit) ties them.
MatrixNames lm_head(const ConfigReader& config, const WeightStore& weights,
                    const std::string& token_table, int64_t vocab, bool tied_by_default);
// The matrices of a layer as BERT and ESM-2 name them.
LayerNames encoder_layer_names(const std::string& stem, const ModelSpec& spec);
// The sizes of GPT-2 and GPT-J, which spell them alike.
void read_gpt_sizes(const ConfigReader& config, ModelSpec& spec);
// The same from GGUF, GPT-NeoX's too.
void read_gpt_sizes(const GgufFile& file, const std::string& architecture, ModelSpec& spec);
// Those of BERT, ESM-2 and OPT, which differ in the name of the inner size.
void read_hidden_sizes(const ConfigReader& config, std::string_view inner_key, ModelSpec& spec);
// All of a Llama's wiring; its vocabulary too where config.json states it.
ModelSpec read_llama_spec(const ConfigReader& config);
ModelSpec read_llama_spec(const GgufFile& file, const std::string& architecture);
// The tensors of Llama's layers, as `layers` + index + "." + name.
struct LlamaNames {
  const char *layers, *attention_norm, *mlp_norm, *q, *k, *v, *o, *gate, *up, *down;
  const char *q_norm = "", *k_norm = "";  // empty: none
};
// As Hugging Face names them, and as GGUF does.
LlamaNames hub_llama_names(const char* layers);
LlamaNames gguf_llama_names();
struct LlamaBiases {
  bool qkv = false, out = false, mlp = false;
};
LayerNames llama_layer_names(const LlamaNames& style, int64_t layer, const ModelSpec& spec,
                             const LlamaBiases& biases);
// How a family spells rotary embedding outside `rope_parameters`.
struct RotaryKeys {
  const char* base = "rope_theta";
  double default_base = 10000;
  const char* part = "partial_rotary_factor";
  double default_part = 1;  // of head_dim
};
// spec.rotary, and which contexts its scaling allows. After head_dim and max_positions.
void read_rotary(const ConfigReader& config, ModelSpec& spec, const RotaryKeys& keys = {});
void read_rotary(const GgufFile& file, const std::string& architecture, ModelSpec& spec);
std::vector<int32_t> eos_ids(const ConfigReader& config);
// output.weight, or the token table where the file has none.
MatrixNames gguf_head(const GgufFile& file, const std::string& token_table, int64_t vocab);
// Checked GGUF numbers; a key that is absent takes the fallback, or is an Error without one.
int64_t gguf_int(const GgufFile& file, const std::string& key, int64_t max,
                 std::optional<int64_t> fallback = {});  // from 1
float gguf_epsilon(const GgufFile& file, const std::string& key);
// The value, where it is a positive number of a sane size; otherwise an Error that names `what`.
double gguf_positive(const GgufFile& file, std::string_view what, double value);
inline constexpr const char* kGgufHint = "was the file written by a current converter?";
// Sizes beyond these are refused before any arithmetic on them.
inline constexpr int64_t kMaxWidth = 1 << 20;
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxVocab = 1 << 24;
inline constexpr int64_t kMaxPositions = int64_t{1} << 30;

}  // namespace sluice::impl
