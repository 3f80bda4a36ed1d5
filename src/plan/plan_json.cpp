#include "plan/plan_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace sluice::impl {
namespace {

using nlohmann::json;

json head_json(const HeadPlan& head, const LayerPlan& layer) {
  json out = {{"kind", kind_name(head.kind)}};
  if (head.kind != HeadKind::kClusters) return out;
  if (layer.mode == AttentionMode::kRefine) {
    // JSON has no infinity.
    out["delta"] = std::isinf(head.delta) ? json() : json(head.delta);
    return out;
  }
  if (!layer.tau_auto) out["tau"] = head.tau;
  if (layer.mode == AttentionMode::kKeys) out["far"] = far_name(head.far);
  return out;
}

void put_refine(const RefinePlan& refine, json& out) {
  out["segment"] = refine.segment;
  out["early"] = refine.early;
  out["page"] = refine.page;
  out["tile"] = refine.tile;
  out["tile_factor"] = refine.tile_factor;
  out["rule"] = kRefineRule;
}

// Modes that have one kind alone do not speak of it; `dense` does where it is not the default.
void put_cache(AttentionMode mode, CacheKind kind, json& out) {
  if (mode == AttentionMode::kRefine ||
      (mode == AttentionMode::kDense && kind != CacheKind::kExact))
    out["cache"] = cache_name(kind);
}

json layer_json(const LayerPlan& layer, int64_t index, int64_t n_kv_heads) {
  const bool keys = layer.mode == AttentionMode::kKeys;
  const bool refine = layer.mode == AttentionMode::kRefine;
  json heads = json::array();
  if (layer.mode == AttentionMode::kDense)
    heads.insert(heads.end(), static_cast<size_t>(n_kv_heads),
                 json{{"kind", kind_name(HeadKind::kDense)}});
  else
    for (const HeadPlan& head : layer.heads) heads.push_back(head_json(head, layer));
  json out = {{"layer", index},
              {"mode", mode_name(layer.mode)},
              {"reuse", layer.reuse},
              {"joint", layer.joint},
              {"window", keys || refine ? json(layer.window) : json()},
              {"block", keys ? json(layer.block) : json()},
              {"heads", std::move(heads)}};
  if (refine) put_refine(layer.refine, out);
  put_cache(layer.mode, layer.cache, out);
  if (layer.mode == AttentionMode::kBaseline) {
    out["mode"] = baseline_name(layer.baseline.kind);
    out["keep"] = layer.baseline.keep;
  }
  return out;
}

}  // namespace

json describe_attention(const UniformAttention& choice, const PlanShape& shape) {
  json out = {{"attention", attention_name(choice)}};
  put_cache(choice.mode, choice.cache, out);
  if (choice.mode == AttentionMode::kDense) return out;
  if (choice.mode == AttentionMode::kBaseline) {
    out["keep"] = choice.baseline.keep;
    out["from_layer"] = choice.from_layer;
    return out;
  }
  const LayerPlan layer = layer_plan(choice, shape);
  if (choice.mode == AttentionMode::kRefine) {
    out["delta"] = std::isinf(choice.delta) ? json() : json(choice.delta);
    out["window"] = layer.window;
    out["sinks"] = layer.sinks;
    out["from_layer"] = choice.from_layer;
    put_refine(layer.refine, out);
    return out;
  }
  out["select"] = rule_name(layer.rule);
  out["space"] = space_name(layer.space);
  out["tau"] = choice.tau_auto ? json() : json(choice.tau);
  if (choice.tau_auto) out["tau_auto"] = true;
  out["sinks"] = layer.sinks;
  out["outlier_ratio"] = layer.outlier_ratio;
  out["from_layer"] = choice.from_layer;
  if (choice.joint) out["joint"] = true;
  if (choice.mode != AttentionMode::kKeys) return out;
  out["far"] = far_name(choice.far);
  out["window"] = layer.window;
  out["block"] = layer.block;
  return out;
}

json describe_plan(const AttentionPlan& plan, int64_t n_kv_heads) {
  json layers = json::array();
  for (size_t l = 0; l < plan.layers.size(); ++l)
    layers.push_back(layer_json(plan.layers[l], static_cast<int64_t>(l), n_kv_heads));
  return {{"layers", std::move(layers)}};
}

json describe_linear(const UniformLinear& choice) {
  json out = {{"linear", linear_name(choice.kind)}};
  if (choice.kind == LinearKind::kDense) return out;
  out["epsilon"] = choice.epsilon;
  if (choice.kind != LinearKind::kGsi) return out;
  out["rank"] = choice.rank;
  out["adaptive"] = choice.adaptive;
  return out;
}

json describe_linear_plan(const LinearPlan& plan) {
  json groups = json::array();
  for (size_t l = 0; l < plan.layers.size(); ++l)
    for (const BasisInput input : kLinearInputs) {
      const GroupPlan& group = plan.layers[l].of(input);
      if (group.kind == LinearKind::kDense) continue;
      json entry = describe_linear({.kind = group.kind,
                                    .rank = group.rank,
                                    .epsilon = group.epsilon,
                                    .adaptive = group.adaptive});
      entry["layer"] = l;
      entry["input"] = basis_input_name(input);
      groups.push_back(std::move(entry));
    }
  return groups;
}

json describe_choice(const UniformChoice& choice, const PlanShape& shape) {
  if (!choice.file.empty())
    return {{"plan", choice.file},
            {"attention", mode_name(choice.attention.mode)},
            {"linear", linear_name(choice.linear.kind)}};
  json out = describe_attention(choice.attention, shape);
  out.update(describe_linear(choice.linear));
  return out;
}

}  // namespace sluice::impl
