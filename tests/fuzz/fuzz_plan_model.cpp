// A plan for a golden model with edits; what is accepted runs a prompt and a step.

#include <numeric>

#include "fuzz/model_harness.h"
#include "paths.h"
#include "plan/plan_file.h"

namespace {

using namespace sluice::impl;
using nlohmann::json;

constexpr int64_t kContext = 32;

constexpr const char* kWords[] = {"dense",
                                  "paper",
                                  "copy",
                                  "keys",
                                  "refine",
                                  "residual",
                                  "normed",
                                  "greedy",
                                  "cascade",
                                  "cascade-cover",
                                  "cover",
                                  "fixed",
                                  "clusters",
                                  "window",
                                  "centroid",
                                  "values",
                                  "own",
                                  "error-by-groups",
                                  "exact",
                                  "int8",
                                  "gsi",
                                  "graded",
                                  "linear",
                                  "heads",
                                  "tau",
                                  "delta",
                                  "segment",
                                  "page",
                                  "tile",
                                  "early",
                                  "sinks",
                                  "block",
                                  "reuse",
                                  "joint",
                                  "cache",
                                  "rank",
                                  "epsilon",
                                  "adaptive",
                                  "mlp_inner",
                                  "mlp_input",
                                  "attention_input",
                                  "attention_output",
                                  "outlier_ratio",
                                  "select",
                                  "space",
                                  "mode",
                                  "layer",
                                  "auto",
                                  "clusters_by",
                                  "rule"};

// Rows of the identity are a basis of any rank.
Bases identity_bases(const LinearShape& shape) {
  Bases bases{.model_sha256 = {},
              .text_path = "text",
              .text_sha256 = std::string(64, 'b'),
              .n_tokens = 100,
              .list = {}};
  for (int64_t layer = 0; layer < shape.n_layers; ++layer) {
    for (const BasisInput input : kBasisInputs) {
      const int64_t d = shape.widths.of(input);
      Basis basis{.layer = layer, .input = input, .d = d, .rank = d, .vectors = {}, .spectrum = {}};
      basis.vectors.resize(static_cast<size_t>(d * d));
      for (int64_t i = 0; i < d; ++i) basis.vectors[static_cast<size_t>(i * d + i)] = 1;
      basis.spectrum.assign(static_cast<size_t>(d), 1.0 / static_cast<double>(d));
      bases.list.push_back(std::move(basis));
    }
  }
  return bases;
}

Model load(const std::shared_ptr<const Checkpoint>& checkpoint) {
  return Model(checkpoint, make_reference_backend(DType::kF32),
               {.context = kContext, .progress = {}});
}

json base_plan(Model& model, fuzz::Script& script) {
  constexpr std::array kModes = {AttentionMode::kDense, AttentionMode::kKeys,
                                 AttentionMode::kRefine, AttentionMode::kCopy,
                                 AttentionMode::kPaper};
  constexpr std::array kKinds = {LinearKind::kDense, LinearKind::kGsi, LinearKind::kGraded};
  const PlanShape shape = model.plan_shape();
  const UniformChoice choice = {.attention = {.mode = kModes[script.below(kModes.size())],
                                              .sinks = 1,
                                              .window = 4,
                                              .block = 4},
                                .linear = {.kind = kKinds[script.below(kKinds.size())], .rank = 4}};
  PlanFile file;
  file.plan = uniform_plan(choice, shape, model.linear_shape());
  file.model = {.sha256 = std::string(64, 'a'),
                .family = "any",
                .n_layers = shape.n_layers,
                .n_kv_heads = shape.n_kv_heads};
  file.context = kContext;
  file.bases = {.path = "bases.safetensors", .text_sha256 = std::string(64, 'b')};
  return plan_file_json(file);
}

void follow(Model& model, const PlanFile& file, fuzz::Script& script) {
  const Bases bases = identity_bases(model.linear_shape());
  check_plan_file(file, "plan.json",
                  {.sha256 = file.model.sha256,
                   .shape = model.plan_shape(),
                   .linear = model.linear_shape(),
                   .bases = &bases});
  model.prepare_linear(file.plan.linear, &bases);
  model.prepare_selection(bases);
  KvCache cache = model.make_cache(1, 0, file.plan.attention, file.plan.linear);
  std::vector<int32_t> prompt(2 + script.below(24));
  std::iota(prompt.begin(), prompt.end(), 0);
  fuzz::step(model, prompt, cache);
  if (!model.spec().causal || has_paper(file.plan.attention)) return;
  fuzz::step(model, std::span(prompt).first(1), cache);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::shared_ptr<const Checkpoint>> checkpoints = [] {
    std::vector<std::shared_ptr<const Checkpoint>> list;
    for (const char* name : {"gpt2", "llama-gqa-tied", "gptj", "opt", "bert", "mistral", "gemma2"})
      list.push_back(open_checkpoint(test::golden_dir() / "models" / name));
    return list;
  }();
  fuzz::Script script(std::as_bytes(std::span(data, size)));
  Model model = load(checkpoints[script.below(checkpoints.size())]);
  fuzz::expect_only_errors([&] {
    json plan = base_plan(model, script);
    for (int i = 0; i < 6 && !script.ended(); ++i) fuzz::edit_json(plan, script, kWords);
    follow(model, parse_plan_file(fuzz::text_of(plan), "plan.json"), script);
  });
  return 0;
}
