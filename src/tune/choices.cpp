#include "tune/choices.h"

#include "tune/reuse.h"

namespace sluice::impl {
namespace {

// KL of what may not be chosen.
constexpr double kNever = 1e9;

}  // namespace

Choices::Choices(const PlanShape& shape, const CostOptions& options, const Costs& costs,
                 const Changes& changes)
    : shape_(shape),
      heads_{.options = options.heads,
             .n_layers = shape.n_layers,
             .n_heads = shape.n_kv_heads,
             .costs = costs.heads,
             .kl = {}} {
  for (int64_t layer = 0; layer < shape.n_layers; ++layer) {
    for (int64_t head = 0; head < shape.n_kv_heads; ++head)
      for (size_t window = 0; window < options.heads.windows.size(); ++window)
        for (int64_t choice = 0; choice < options.heads.n_choices(); ++choice)
          heads_.kl.push_back(shape.stays_dense(layer) ? kNever
                                                       : changes.kl({layer, head, window, choice}));
    for (const BasisInput input : kLinearInputs) {
      const auto& of_group = costs.linear[static_cast<size_t>(layer)][static_cast<size_t>(input)];
      GroupTable table{
          .layer = layer, .input = input, .options = {{.plan = {}, .kl = 0, .cost = of_group[0]}}};
      for (size_t i = 0; i < options.linear.size(); ++i)
        table.options.push_back({.plan = options.linear[i],
                                 .kl = changes.kl(layer, input, options.linear[i]),
                                 .cost = of_group[1 + i]});
      groups_.push_back(std::move(table));
    }
  }
}

Chosen Choices::reusing(Chosen chosen, std::span<const int64_t> layers) const {
  chosen.cost -= heads_.cost_of(chosen.plan.attention);
  chosen.plan.attention = with_reuse(std::move(chosen.plan.attention), layers);
  chosen.cost += heads_.cost_of(chosen.plan.attention);
  return chosen;
}

double Choices::dense_cost() const {
  double cost = 0;
  for (const LayerCosts& layer : heads_.costs)
    cost += layer.dense_head * static_cast<double>(heads_.n_heads);
  for (const GroupTable& group : groups_) cost += group.options[0].cost;
  return cost;
}

}  // namespace sluice::impl
