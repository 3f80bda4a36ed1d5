// The golden checkpoints' cases with the logits that Hugging Face transformers made of them
// (tools/make_golden.py; versions in versions.json), and how near a backend must come.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/safetensors.h"
#include "model/model.h"
#include "paths.h"

namespace sluice::impl::test {

namespace fs = std::filesystem;

struct GoldenCase {
  std::vector<int32_t> ids;
  int64_t context;              // 0: the model's own
  std::vector<float> expected;  // (n_tokens, width)
};

struct Golden {
  fs::path model;
  bool hidden_only;  // no head: compare hidden states
  std::vector<GoldenCase> cases;
};

inline Golden read_golden(const fs::path& model, const fs::path& json_path,
                          const fs::path& tensors) {
  const auto json = nlohmann::json::parse(std::ifstream(json_path));
  const std::string output = json.value("output", "logits");
  WeightStore store;
  add_safetensors(tensors, store);
  Golden golden{model, output == "hidden", {}};
  for (size_t i = 0; i < json.at("cases").size(); ++i) {
    const auto& entry = json.at("cases")[i];
    GoldenCase c;
    c.ids = entry.at("ids").get<std::vector<int32_t>>();
    c.context = entry.at("context").is_null() ? 0 : entry.at("context").get<int64_t>();
    const StoredTensor& tensor = store.require(output + "." + std::to_string(i));
    c.expected.resize(static_cast<size_t>(tensor.shape.numel()));
    expand(tensor, 0, c.expected);
    golden.cases.push_back(std::move(c));
  }
  return golden;
}

inline Golden open_golden(const std::string& name) {
  const fs::path path = test::golden_dir() / name;
  if (fs::is_directory(path))
    return read_golden(path, path / "golden.json", path / "golden.safetensors");
  fs::path stem = path;
  stem.replace_extension();
  return read_golden(path, stem.string() + ".golden.json", stem.string() + ".golden.safetensors");
}

// Largest difference over the range of the expected values, in parts of it.
inline double relative_error(const std::vector<float>& got, const std::vector<float>& expected) {
  const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i)
    worst = std::max(worst, std::isfinite(got[i]) ? std::abs(double{got[i]} - expected[i]) : 1e9);
  return worst / (double{*high} - *low);
}

inline std::vector<float> run(Model& model, const Golden& golden, const std::vector<int32_t>& ids,
                              KvCache& cache) {
  const ConstTensor hidden = model.forward(ids, cache);
  const int64_t width = golden.hidden_only ? model.spec().d_model : model.spec().vocab;
  std::vector<float> out(ids.size() * static_cast<size_t>(width));
  const Tensor view(out.data(), DType::kF32, {hidden.rows(), width});
  if (golden.hidden_only) {
    const Buffer wide = model.backend().allocate(DType::kF32, hidden.shape());
    model.backend().convert(hidden, wide.view());
    model.backend().download(wide.view(), view);
  } else {
    model.logits(hidden, view);
  }
  return out;
}

// bf16 keeps 8 bits: a rounding is wrong by at most 2^-8 of the value, and by about 2^-9 in the
// root mean square. On the way through a layer about ten tensors are rounded (normed input twice,
// q, k, v, attention weights, attention output, inner activations, and the weights themselves);
// independent errors add up as the root of their number, and three standard deviations cover the
// worst of a few thousand logits, whose own spread is about a sixth of the range they are compared
// with.
inline double bf16_tolerance(int64_t n_layers) {
  return 3 * 0x1p-9 * std::sqrt(10.0 * static_cast<double>(n_layers) + 2);
}

// Every case of a checkpoint, whole. make: a backend of that dtype.
inline void expect_golden(const std::string& name, DType dtype,
                          const std::function<std::unique_ptr<Backend>()>& make) {
  const Golden golden = open_golden(name);
  const auto checkpoint = open_checkpoint(golden.model);
  const double tolerance = dtype == DType::kF32 ? 2e-5  // the project's promise
                                                : bf16_tolerance(checkpoint->spec().n_layers);
  double worst = 0;
  for (const GoldenCase& c : golden.cases) {
    // Blocks expanded, as transformers has them.
    Model model(checkpoint, make(), {.context = c.context, .progress = {}, .weights = dtype});
    KvCache cache = model.make_cache();
    const auto got = run(model, golden, c.ids, cache);
    const double error = relative_error(got, c.expected);
    worst = std::max(worst, error);
    EXPECT_LE(error, tolerance) << c.ids.size() << " tokens";
  }
  testing::Test::RecordProperty("worst_error", std::to_string(worst));
}

}  // namespace sluice::impl::test
