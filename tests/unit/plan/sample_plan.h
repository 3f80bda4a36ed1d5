// Small plans for tests.

#pragma once

#include <string>

#include "plan/plan_file.h"

namespace sluice::impl::test {

// With something of everything.
inline PlanFile sample_plan() {
  PlanFile file;
  file.model = {.sha256 = std::string(64, 'a'), .family = "gpt2", .n_layers = 5, .n_kv_heads = 3};
  file.context = 1024;
  file.objective = PlanObjective::kDecode;
  file.contract = {.max_kl = 0.01, .max_kl_p99 = 0.1};
  file.auto_from = {.prefill_from = 512, .decode_from = {}};
  file.measured = {.dtype = "bf16", .device = "a processor", .threads = 16};
  file.bases = {.path = "bases.safetensors", .text_sha256 = std::string(64, 'b')};
  file.provenance = {{"command_line", "sluice tune -m gpt2"},
                     {"text", {{"path", "text.txt"}, {"sha256", std::string(64, 'c')}}},
                     {"predicted_kl", 0.0081},
                     {"calibration", {{"kl_mean", 0.0083}, {"n_tokens", 20480}}},
                     {"held_out",
                      {{"kl_mean", 0.0085},
                       {"kl_stderr", 0.0004},
                       {"ppl_ratio", 1.004},
                       {"n_tokens", 10240},
                       {"n_documents", 12}}},
                     {"time", {{"dense_ms", 120.5}, {"plan_ms", 80.25}}}};

  auto& layers = file.plan.attention.layers;
  layers.resize(5);
  LayerPlan& keys = layers[1];
  keys.mode = AttentionMode::kKeys;
  keys.joint = true;
  keys.window = 64;
  keys.block = 32;
  keys.sinks = 2;
  keys.outlier_ratio = 0.1;
  keys.heads = {{.kind = HeadKind::kClusters, .tau = 0.3, .far = FarKey::kValues},
                {.kind = HeadKind::kWindow},
                {.kind = HeadKind::kDense}};
  layers[2] = keys;
  layers[2].reuse = true;
  layers[2].heads[1] = {.kind = HeadKind::kClusters, .tau = 0.3, .far = FarKey::kOwn};
  LayerPlan& copy = layers[3];
  copy.mode = AttentionMode::kCopy;
  copy.rule = SelectRule::kGreedy;
  copy.space = SelectSpace::kResidual;
  copy.heads.assign(3, {.kind = HeadKind::kClusters, .tau = 0.7});

  auto& linear = file.plan.linear.layers;
  linear.resize(5);
  linear[0].of(BasisInput::kMlpInner) = {.kind = LinearKind::kGraded, .epsilon = 0.05};
  linear[3].of(BasisInput::kAttentionInput) = {
      .kind = LinearKind::kGsi, .rank = 16, .epsilon = 0.1, .adaptive = 4};
  return file;
}

// Of two layers, all dense.
inline PlanFile dense_plan() {
  PlanFile file;
  file.model = {.sha256 = std::string(64, '0'), .family = "llama", .n_layers = 2, .n_kv_heads = 1};
  file.context = 1;
  file.plan.attention.layers.resize(2);
  return file;
}

inline PlanFile parsed(const nlohmann::json& file) {
  return parse_plan_file(file.dump(), "plan.json");
}

}  // namespace sluice::impl::test
