// A golden folder with edits to its tensors, to the header of its weights and to config.json.

#include "fuzz/model_harness.h"

namespace {

using namespace sluice::impl;
using nlohmann::json;

constexpr const char* kConfigWords[] = {"bert",
                                        "esm",
                                        "gemma2",
                                        "gemma3_text",
                                        "gpt2",
                                        "gpt_neox",
                                        "gptj",
                                        "llama",
                                        "mistral",
                                        "opt",
                                        "phi3",
                                        "qwen2",
                                        "qwen3",
                                        "smollm3",
                                        "gelu",
                                        "gelu_new",
                                        "relu",
                                        "silu",
                                        "linear",
                                        "dynamic",
                                        "yarn",
                                        "longrope",
                                        "llama3",
                                        "default",
                                        "rope_scaling",
                                        "rope_type",
                                        "factor",
                                        "hidden_size",
                                        "head_dim",
                                        "vocab_size",
                                        "layer_types",
                                        "rope_theta",
                                        "n_inner",
                                        "n_head",
                                        "eos_token_id",
                                        "sliding_window",
                                        "full_attention",
                                        "sliding_attention",
                                        "tie_word_embeddings",
                                        "max_position_embeddings",
                                        "num_key_value_heads",
                                        "partial_rotary_factor"};
constexpr const char* kHeaderWords[] = {"F32",   "F16",   "BF16",         "F64",
                                        "I8",    "I64",   "BOOL",         "F8_E4M3",
                                        "dtype", "shape", "data_offsets", "__metadata__"};

struct Source {
  json config;
  std::vector<test::SafetensorsTensor> tensors;
};

Source read_source(const fuzz::fs::path& folder) {
  const std::string file = test::read_bytes(folder / "model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  Source source{json::parse(test::read_bytes(folder / "config.json")), {}};
  const json header = json::parse(file.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto offsets = entry["data_offsets"].get<std::vector<size_t>>();
    source.tensors.push_back({name, entry["dtype"], entry["shape"].get<std::vector<int64_t>>(),
                              file.substr(8 + length + offsets[0], offsets[1] - offsets[0])});
  }
  return source;
}

const std::vector<Source>& sources() {
  static const std::vector<Source> all = [] {
    std::vector<Source> list;
    for (const auto& folder : fuzz::golden_files("models", ""))
      if (exists(folder / "model.safetensors")) list.push_back(read_source(folder));
    return list;
  }();
  return all;
}

// A tensor of another shape, type or name, with as many bytes as it needs.
void edit_tensor(std::vector<test::SafetensorsTensor>& tensors, fuzz::Script& script) {
  if (tensors.empty()) return;
  const size_t i = script.below(tensors.size());
  test::SafetensorsTensor& tensor = tensors[i];
  switch (script.below(6)) {
    case 0:
      tensors.erase(tensors.begin() + static_cast<int64_t>(i));
      return;
    case 1:
      tensor.name = tensors[script.below(tensors.size())].name;
      return;
    case 2:
      if (!tensor.shape.empty())
        tensor.shape[script.below(tensor.shape.size())] = static_cast<int64_t>(script.below(100));
      break;
    case 3:
      tensor.shape.insert(tensor.shape.begin(), 1);
      break;
    case 4:
      std::reverse(tensor.shape.begin(), tensor.shape.end());
      break;
    default:
      tensor.dtype = script.below(2) == 0 ? "F16" : "BF16";
      for (char& byte : tensor.data) byte = static_cast<char>(byte ^ script.take<char>());
  }
  size_t count = tensor.dtype == "F32" ? 4 : 2;
  for (const int64_t extent : tensor.shape) count *= static_cast<size_t>(extent);
  if (count < (size_t{1} << 20)) tensor.data.resize(count);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const test::TempDir folder;
  fuzz::Script script(std::as_bytes(std::span(data, size)));
  Source source = sources()[script.below(sources().size())];

  for (int i = 0; i < 6 && !script.ended(); ++i) {
    if (script.below(3) == 0)
      edit_tensor(source.tensors, script);
    else
      fuzz::edit_json(source.config, script, kConfigWords);
  }
  std::string bytes = test::safetensors_bytes(source.tensors);
  if (!script.ended()) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    json header = json::parse(bytes.substr(8, length));
    for (int i = 0; i < 3 && !script.ended(); ++i) fuzz::edit_json(header, script, kHeaderWords);
    bytes = test::safetensors_from_header(fuzz::text_of(header), bytes.substr(8 + length));
  }
  folder.write("config.json", fuzz::text_of(source.config));
  folder.write("model.safetensors", bytes);
  fuzz::inspect_and_step(folder.path());
  return 0;
}
