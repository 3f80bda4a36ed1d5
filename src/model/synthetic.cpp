#include "model/synthetic.h"

#include <algorithm>
#include <random>

#include "model/families.h"

namespace sluice::impl {
namespace {

// The names and shapes a description asks for.
class TensorList {
 public:
  explicit TensorList(const ModelDescription& model) {
    const ModelSpec& spec = model.spec;
    const WeightNames& names = model.names;
    add(names.token_table, {spec.vocab, spec.d_embed});
    add(names.position_table, {spec.max_positions + spec.position_offset, spec.d_model});
    add(names.type_table, {2, spec.d_model});
    add_norm(names.embed_norm, spec.d_model);
    add_norm(names.final_norm, spec.d_model);
    add_norm(names.head_norm, spec.d_model);
    add_matrix(names.project_in, spec.d_embed);
    add_matrix(names.head_transform, spec.d_model);
    for (const LayerNames& layer : names.layers) {
      add_norm(layer.attention_norm, spec.d_model);
      add_norm(layer.mlp_norm, spec.d_model);
      add_norm(layer.query_norm, spec.head_dim);
      add_norm(layer.key_norm, spec.head_dim);
      add_norm(layer.attention_post_norm, spec.d_model);
      add_norm(layer.mlp_post_norm, spec.d_model);
      add_matrix(layer.qkv, spec.d_model);
      add_matrix(layer.attention_out, spec.query_width());
      add_matrix(layer.mlp_in, spec.d_model);
      add_matrix(layer.mlp_out, spec.d_inner);
    }
    add_matrix(names.head, spec.d_model);
  }

  std::vector<StoredTensor> tensors;
  std::vector<std::string> norm_weights;  // names among them

 private:
  void add(const std::string& name, Shape shape) {
    const auto same = [&](const StoredTensor& tensor) { return tensor.name == name; };
    if (!name.empty() && std::none_of(tensors.begin(), tensors.end(), same))
      tensors.push_back({name, DType::kBF16, shape, {}});
  }
  void add_norm(const NormNames& names, int64_t width) {
    add(names.weight, {width});
    norm_weights.push_back(names.weight);
    add(names.bias, {width});
  }
  void add_matrix(const MatrixNames& names, int64_t n_in) {
    for (const MatrixPart& part : names) {
      add(part.weight, part.transposed ? Shape{n_in, part.n_out} : Shape{part.stored_rows(), n_in});
      add(part.bias, {part.stored_rows()});
    }
  }
};

// A checkpoint and the memory its tensors lie in.
struct SyntheticCheckpoint {
  std::vector<BFloat16> pool, norm_pool;
  Checkpoint checkpoint;
};

}  // namespace

std::shared_ptr<const Checkpoint> synthetic_checkpoint(const ConfigReader& config) {
  auto made = std::make_shared<SyntheticCheckpoint>();
  Checkpoint& checkpoint = made->checkpoint;
  checkpoint.path = "synthetic";
  checkpoint.format = "safetensors";
  // A family looks for its token table to learn the prefix of the names.
  WeightStore probe;
  for (const char* name :
       {"transformer.wte.weight", "model.embed_tokens.weight", "model.decoder.embed_tokens.weight",
        "bert.embeddings.word_embeddings.weight", "esm.embeddings.word_embeddings.weight",
        "gpt_neox.embed_in.weight", "lm_head.weight"})
    if (name != std::string_view("lm_head.weight") || !config.bool_or("tie_word_embeddings", true))
      probe.add({name, DType::kBF16, {1}, {}});
  checkpoint.description = describe(config, probe);
  TensorList list(checkpoint.description);
  int64_t largest = 0;
  for (const StoredTensor& tensor : list.tensors) largest = std::max(largest, tensor.shape.numel());
  // Tensors begin at different places, so that layers are not copies of each other.
  constexpr int64_t kShift = 4099;
  const auto n_tensors = static_cast<int64_t>(list.tensors.size());
  made->pool.resize(static_cast<size_t>(largest + kShift * n_tensors));
  std::mt19937 random(7);
  const auto uniform = [&] { return static_cast<float>(random() >> 8) * 0x1p-24f - 0.5f; };
  for (BFloat16& x : made->pool) x = to_bfloat16(uniform() * 0.1f);
  const ModelSpec& spec = checkpoint.description.spec;
  made->norm_pool.resize(static_cast<size_t>(std::max(spec.d_model, spec.head_dim)));
  for (BFloat16& x : made->norm_pool) x = to_bfloat16(1 + uniform());
  for (int64_t i = 0; i < n_tensors; ++i) {
    StoredTensor& tensor = list.tensors[static_cast<size_t>(i)];
    const bool is_norm = std::find(list.norm_weights.begin(), list.norm_weights.end(),
                                   tensor.name) != list.norm_weights.end();
    const BFloat16* values = is_norm ? made->norm_pool.data() : made->pool.data() + i * kShift;
    tensor.bytes = std::as_bytes(std::span(values, static_cast<size_t>(tensor.shape.numel())));
    checkpoint.folder_weights.add(tensor);
  }
  return {made, &checkpoint};
}

}  // namespace sluice::impl
