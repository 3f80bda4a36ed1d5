// The golden checkpoints as inputs: which there are, their prompts, and their logits here.

#pragma once

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "model/model.h"
#include "paths.h"

namespace sluice::impl::test {

struct GoldenModel {
  std::string name;             // "models/gpt2" or "gguf/llama-f32.gguf"
  std::vector<int32_t> prompt;  // the longest of its cases
  int64_t context = 0;          // that it was made with, 0 for the model's own
  std::filesystem::path path() const { return test::golden_dir() / name; }
};

inline GoldenModel golden_model(const std::string& name) {
  namespace fs = std::filesystem;
  GoldenModel model{name, {}, 0};
  fs::path json_path = model.path() / "golden.json";
  if (!fs::is_directory(model.path())) {
    json_path = model.path();
    json_path.replace_extension(".golden.json");
  }
  const auto json = nlohmann::json::parse(std::ifstream(json_path));
  for (const auto& entry : json.at("cases")) {
    auto ids = entry.at("ids").get<std::vector<int32_t>>();
    if (ids.size() <= model.prompt.size()) continue;
    model.prompt = std::move(ids);
    model.context = entry.at("context").is_null() ? 0 : entry.at("context").get<int64_t>();
  }
  return model;
}

inline std::vector<std::string> all_models() {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(test::golden_dir() / "models"))
    names.push_back("models/" + entry.path().filename().string());
  for (const auto& entry : fs::directory_iterator(test::golden_dir() / "gguf"))
    if (entry.path().extension() == ".gguf")
      names.push_back("gguf/" + entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// Those that predict the next token.
inline std::vector<std::string> causal_models() {
  std::vector<std::string> names = all_models();
  std::erase_if(names, [](const std::string& name) {
    return name.starts_with("models/bert") || name.starts_with("models/esm");
  });
  return names;
}

struct ModelSetup {
  const char* backend;
  DType dtype;
  std::unique_ptr<Backend> (*make_on_device)(DType) = nullptr;  // for others than those of the host
  const char* missing = nullptr;                                // what this machine lacks to run it

  bool is_reference() const { return std::string_view(backend) == "reference"; }
  bool on_device() const { return make_on_device != nullptr; }
  std::unique_ptr<Backend> make() const {
    if (on_device()) return make_on_device(dtype);
    return is_reference() ? make_reference_backend(dtype) : make_cpu_backend(dtype);
  }
};
inline void PrintTo(const ModelSetup& setup, std::ostream* out) {
  *out << setup.backend << " " << dtype_name(setup.dtype);
}
inline const std::vector<ModelSetup> kModelSetups = {{"reference", DType::kF32},
                                                     {"cpu", DType::kF32},
                                                     {"reference", DType::kBF16},
                                                     {"cpu", DType::kBF16}};

// With stored blocks expanded: products with blocks round activations for a few rows alone, so that
// logits depend on how tokens are fed (weights_test.cpp).
inline Model load(const GoldenModel& golden, const ModelSetup& setup) {
  return Model(open_checkpoint(golden.path()), setup.make(),
               {.context = golden.context, .progress = {}, .weights = setup.dtype});
}

// Feeds tokens (n_batch, n_tokens) after what the cache holds -> logits (n_batch, n_tokens, vocab).
inline std::vector<float> logits_of(Model& model, const std::vector<int32_t>& tokens,
                                    KvCache& cache) {
  const ConstTensor hidden = model.forward(tokens, cache);
  std::vector<float> out(tokens.size() * static_cast<size_t>(model.spec().vocab));
  model.logits(hidden, Tensor(out.data(), DType::kF32, {hidden.rows(), model.spec().vocab}));
  return out;
}

inline double range_of(const std::vector<float>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return double{*high} - *low;
}

// For names of parameterised tests.
inline std::string test_name_of(std::string name, const ModelSetup& setup) {
  name += std::string("_") + setup.backend + "_" + std::string(dtype_name(setup.dtype));
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

}  // namespace sluice::impl::test
