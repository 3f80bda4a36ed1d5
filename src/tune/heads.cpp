#include "tune/heads.h"

#include <fmt/format.h>

namespace sluice {

HeadPlan HeadOptions::choice(int64_t i) const {
  if (!clusters(i)) return {.kind = HeadKind::kWindow, .tau = 0, .far = FarKey::kCentroid};
  return {.kind = HeadKind::kClusters,
          .tau = taus[cost_of(i)],
          .far = fars[static_cast<size_t>(i) / taus.size()]};
}

size_t HeadOptions::cost_of(int64_t choice) const {
  return clusters(choice) ? static_cast<size_t>(choice) % taus.size() : taus.size();
}

std::string HeadChange::name(const HeadOptions& options) const {
  const HeadPlan head_plan = options.choice(choice);
  const std::string what = head_plan.kind == HeadKind::kClusters
                               ? fmt::format("{} {}", far_name(head_plan.far), head_plan.tau)
                               : "window";
  return fmt::format("layer {} head {} w{} {}", layer, head, options.windows[window], what);
}

bool may_change(const PlanShape& shape, int64_t layer) {
  if (shape.windows.empty()) return true;
  const int64_t window = shape.windows[static_cast<size_t>(layer)];
  return window == 0 || window >= shape.context;
}

LayerPlan keys_layer(const PlanShape& shape, int64_t window) {
  UniformAttention choice;
  choice.mode = AttentionMode::kKeys;
  choice.window = choice.block = window;
  LayerPlan layer = layer_plan(choice, shape);
  for (HeadPlan& head : layer.heads) head.kind = HeadKind::kDense;
  return layer;
}

AttentionPlan dense_plan(const PlanShape& shape) {
  AttentionPlan plan;
  plan.layers.resize(static_cast<size_t>(shape.n_layers));
  return plan;
}

AttentionPlan plan_with(const HeadChange& change, const HeadOptions& options,
                        const PlanShape& shape) {
  AttentionPlan plan = dense_plan(shape);
  LayerPlan& layer = plan.layers[static_cast<size_t>(change.layer)];
  layer = keys_layer(shape, options.windows[change.window]);
  layer.heads[static_cast<size_t>(change.head)] = options.choice(change.choice);
  return plan;
}

LinearPlan linear_plan_with(int64_t layer, BasisInput input, const GroupPlan& group,
                            int64_t n_layers) {
  LinearPlan plan;
  plan.layers.resize(static_cast<size_t>(n_layers));
  plan.layers[static_cast<size_t>(layer)].of(input) = group;
  return plan;
}

LinearPlan linear_plan_of_all(const GroupPlan& group, int64_t n_layers) {
  LinearPlan plan;
  plan.layers.resize(static_cast<size_t>(n_layers));
  for (LayerLinearPlan& layer : plan.layers) layer.groups.fill(group);
  return plan;
}

AttentionPlan plan_of_all(int64_t window, const HeadPlan& head, const PlanShape& shape) {
  AttentionPlan plan = dense_plan(shape);
  for (int64_t i = 0; i < shape.n_layers; ++i) {
    if (!may_change(shape, i)) continue;
    LayerPlan& layer = plan.layers[static_cast<size_t>(i)];
    layer = keys_layer(shape, window);
    layer.heads.assign(layer.heads.size(), head);
  }
  return plan;
}

}  // namespace sluice
