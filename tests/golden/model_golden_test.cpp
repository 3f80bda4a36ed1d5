// Every golden checkpoint on every backend against logits that Hugging Face transformers made
// (tools/make_golden.py; versions in versions.json).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/safetensors.h"
#include "model/model.h"
#include "unit/model/golden_models.h"

namespace sluice {
namespace {

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

Golden read_golden(const fs::path& model, const fs::path& json_path, const fs::path& tensors) {
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

Golden open_golden(const std::string& name) {
  const fs::path path = fs::path(SLUICE_GOLDEN_DIR) / name;
  if (fs::is_directory(path))
    return read_golden(path, path / "golden.json", path / "golden.safetensors");
  fs::path stem = path;
  stem.replace_extension();
  return read_golden(path, stem.string() + ".golden.json", stem.string() + ".golden.safetensors");
}

// Largest difference over the range of the expected values, in parts of it.
double relative_error(const std::vector<float>& got, const std::vector<float>& expected) {
  const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i)
    worst = std::max(worst, std::isfinite(got[i]) ? std::abs(double{got[i]} - expected[i]) : 1e9);
  return worst / (double{*high} - *low);
}

std::vector<float> run(Model& model, const Golden& golden, const std::vector<int32_t>& ids,
                       KvCache& cache) {
  const ConstTensor hidden = model.forward(ids, cache);
  const int64_t width = golden.hidden_only ? model.spec().d_model : model.spec().vocab;
  std::vector<float> out(ids.size() * static_cast<size_t>(width));
  const Tensor view(out.data(), DType::kF32, {hidden.rows(), width});
  if (golden.hidden_only)
    model.backend().convert(hidden, view);
  else
    model.logits(hidden, view);
  return out;
}

// bf16 keeps 8 bits: a rounding is wrong by at most 2^-8 of the value, and by about 2^-9 in the
// root mean square. On the way through a layer about ten tensors are rounded (normed input twice,
// q, k, v, attention weights, attention output, inner activations, and the weights themselves);
// independent errors add up as the root of their number, and three standard deviations cover the
// worst of a few thousand logits, whose own spread is about a sixth of the range they are compared
// with.
double bf16_tolerance(int64_t n_layers) {
  return 3 * 0x1p-9 * std::sqrt(10.0 * static_cast<double>(n_layers) + 2);
}

using Parameter = std::tuple<std::string, test::ModelSetup>;
class GoldenModel : public testing::TestWithParam<Parameter> {};

TEST_P(GoldenModel, AgreesWithHuggingFace) {
  const auto& [name, setup] = GetParam();
  const Golden golden = open_golden(name);
  const auto checkpoint = open_checkpoint(golden.model);
  const double tolerance = setup.dtype == DType::kF32 ? 2e-5  // the project's promise
                                                      : bf16_tolerance(checkpoint->spec().n_layers);
  double worst = 0;
  for (const GoldenCase& c : golden.cases) {
    Model model(checkpoint, setup.make(), {.context = c.context, .progress = {}});
    KvCache cache = model.make_cache();
    const auto got = run(model, golden, c.ids, cache);
    const double error = relative_error(got, c.expected);
    worst = std::max(worst, error);
    EXPECT_LE(error, tolerance) << c.ids.size() << " tokens";
  }
  RecordProperty("worst_error", std::to_string(worst));
}

std::string test_name(const testing::TestParamInfo<Parameter>& info) {
  const auto& [name, setup] = info.param;
  std::string text = name + "_" + setup.backend + "_" + std::string(dtype_name(setup.dtype));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return !std::isalnum(c); }, '_');
  return text;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModel,
                         testing::Combine(testing::ValuesIn(test::all_models()),
                                          testing::ValuesIn(test::kModelSetups)),
                         test_name);

}  // namespace
}  // namespace sluice
