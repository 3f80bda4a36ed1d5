// Llama and its relatives as GGUF files: architectures llama (Mistral too), qwen2, qwen3, smollm3.

#include <fmt/format.h>

#include "core/error.h"
#include "model/families.h"

namespace sluice::impl {

ModelSpec read_llama_spec(const GgufFile& file, const std::string& architecture) {
  const auto key = [&](const char* name) { return architecture + "." + name; };
  ModelSpec spec;
  spec.family = architecture;
  spec.norm = NormKind::kRms;
  spec.gated = true;
  spec.activation = Activation::kSilu;
  if (file.find_int(key("expert_count")).value_or(0) > 0)
    throw Error(fmt::format("{}: `{}` is stated: mixtures of experts are not supported yet",
                            file.path.string(), key("expert_count")),
                "a dense model of the same family is");
  spec.n_layers = gguf_int(file, key("block_count"), kMaxLayers);
  spec.d_model = spec.d_embed = gguf_int(file, key("embedding_length"), kMaxWidth);
  spec.n_heads = gguf_int(file, key("attention.head_count"), kMaxWidth);
  spec.n_kv_heads = gguf_int(file, key("attention.head_count_kv"), spec.n_heads, spec.n_heads);
  spec.head_dim = gguf_int(file, key("attention.key_length"), 65536, spec.d_model / spec.n_heads);
  if (spec.n_heads % spec.n_kv_heads != 0 || spec.head_dim % 2 != 0)
    throw Error(fmt::format("{}: {} heads, {} key/value heads and head_dim {} do not fit together",
                            file.path.string(), spec.n_heads, spec.n_kv_heads, spec.head_dim),
                kGgufHint);
  spec.d_inner = gguf_int(file, key("feed_forward_length"), kMaxWidth);
  spec.max_positions = gguf_int(file, key("context_length"), kMaxPositions);
  spec.norm_epsilon = gguf_epsilon(file, key("attention.layer_norm_rms_epsilon"));
  read_rotary(file, architecture, spec);
  return spec;
}

LlamaNames gguf_llama_names() {
  return {.layers = "blk.",
          .attention_norm = "attn_norm",
          .mlp_norm = "ffn_norm",
          .q = "attn_q",
          .k = "attn_k",
          .v = "attn_v",
          .o = "attn_output",
          .gate = "ffn_gate",
          .up = "ffn_up",
          .down = "ffn_down",
          .q_norm = "attn_q_norm",
          .k_norm = "attn_k_norm"};
}

ModelDescription describe_llama(const GgufFile& file, const std::string& architecture) {
  ModelDescription model;
  ModelSpec& spec = model.spec = read_llama_spec(file, architecture);
  const bool smollm3 = architecture == "smollm3";
  // For these llama.cpp stores the rows of Q and K so that rotary pairs are neighbours.
  if (architecture == "llama" || smollm3) spec.rotary.style = RotaryStyle::kInterleaved;
  // Every fourth layer does not rotate; no key of the file states it.
  if (smollm3)
    for (int64_t layer = 0; layer < spec.n_layers; ++layer)
      spec.rotary_layers.push_back((layer + 1) % 4 != 0);

  WeightNames& names = model.names;
  names.token_table = "token_embd.weight";
  spec.vocab = file.weights.require(names.token_table).shape[0];
  LlamaNames style = gguf_llama_names();
  if (architecture != "qwen3") style.q_norm = style.k_norm = "";
  const auto stored = [&](const char* name) { return file.weights.find(name) != nullptr; };
  const LlamaBiases biases = {.qkv = stored("blk.0.attn_q.bias"),
                              .out = stored("blk.0.attn_output.bias"),
                              .mlp = stored("blk.0.ffn_up.bias")};
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    names.layers.push_back(llama_layer_names(style, layer, spec, biases));
  names.final_norm = rms_norm_named("output_norm");
  names.head = gguf_head(file, names.token_table, spec.vocab);
  return model;
}

}  // namespace sluice::impl
