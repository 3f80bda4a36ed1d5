#include "tune/heads.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace sluice::impl {

HeadPlan HeadOptions::choice(int64_t i) const {
  if (!clusters(i)) return {.kind = HeadKind::kWindow};
  const double threshold = thresholds()[cost_of(i)];
  if (refines()) return {.kind = HeadKind::kClusters, .delta = threshold};
  return {.kind = HeadKind::kClusters,
          .tau = threshold,
          .far = fars[static_cast<size_t>(i) / taus.size()]};
}

size_t HeadOptions::cost_of(int64_t choice) const {
  const size_t n = thresholds().size();
  return clusters(choice) ? static_cast<size_t>(choice) % n : n;
}

size_t HeadOptions::cost_of(const HeadPlan& head) const {
  const std::vector<double>& known = thresholds();
  if (head.kind == HeadKind::kWindow) return known.size();
  const auto at = std::find(known.begin(), known.end(), refines() ? head.delta : head.tau);
  SLUICE_CHECK(at != known.end());
  return static_cast<size_t>(at - known.begin());
}

HeadPlan HeadOptions::choice_of_cost(int64_t cost) const {
  return choice(cost < std::ssize(thresholds()) ? cost : n_choices() - 1);
}

std::string HeadChange::name(const HeadOptions& options) const {
  const int64_t of_window = options.windows[window];
  const HeadPlan plan = options.choice(choice);
  const bool clusters = plan.kind == HeadKind::kClusters;
  const std::string name = fmt::format("layer {} head {} w{}", layer, head, of_window);
  if (!options.refines())
    return clusters ? fmt::format("{} {} {}", name, far_name(plan.far), plan.tau)
                    : name + " window";
  const RefinePlan& refine = options.refine;
  return fmt::format("{} refine {} s{} e{} p{} t{}", name,
                     clusters ? fmt::format("{}", plan.delta) : "window", refine.segment,
                     refine.early, refine.page, options.strict ? 1 : options.tile(of_window));
}

LayerPlan exact_layer(const HeadOptions& options, const PlanShape& shape, int64_t window) {
  UniformAttention choice;
  choice.mode = options.mode;
  choice.window = choice.block = window;
  choice.refine = options.refine;
  choice.refine.tile = options.tile(window);
  LayerPlan layer = layer_plan(choice, shape);
  layer.heads.assign(layer.heads.size(), {.kind = HeadKind::kDense});
  return layer;
}

AttentionPlan dense_plan(const PlanShape& shape) {
  AttentionPlan plan;
  plan.layers.resize(static_cast<size_t>(shape.n_layers));
  return plan;
}

AttentionPlan with_strict_tiles(AttentionPlan plan) {
  for (LayerPlan& layer : plan.layers) layer.refine.tile = 1;
  return plan;
}

AttentionPlan plan_with(const HeadChange& change, const HeadOptions& options,
                        const PlanShape& shape) {
  AttentionPlan plan = dense_plan(shape);
  LayerPlan& layer = plan.layers[static_cast<size_t>(change.layer)];
  layer = exact_layer(options, shape, options.windows[change.window]);
  layer.heads[static_cast<size_t>(change.head)] = options.choice(change.choice);
  return options.strict ? with_strict_tiles(std::move(plan)) : plan;
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

AttentionPlan plan_of_all(const HeadOptions& options, int64_t window, const HeadPlan& head,
                          const PlanShape& shape) {
  AttentionPlan plan = dense_plan(shape);
  for (int64_t i = 0; i < shape.n_layers; ++i) {
    if (shape.stays_dense(i)) continue;
    LayerPlan& layer = plan.layers[static_cast<size_t>(i)];
    layer = exact_layer(options, shape, window);
    layer.heads.assign(layer.heads.size(), head);
  }
  return plan;
}

}  // namespace sluice::impl
