#include "tune/reuse.h"

#include <algorithm>

#include "select/inherit.h"

namespace sluice::impl {
namespace {

// Thresholds of the sets that a layer would find, as layers go by.
class InForce {
 public:
  const std::vector<double>& taus() const { return taus_; }  // empty: there are no sets
  bool may_reuse(const LayerPlan& layer) const {
    return !layer.reuse && layer.clusters() && !taus_.empty();
  }
  void pass(const LayerPlan& layer) {
    if (layer.selects() && !layer.reuse)
      taus_ = layer.clusters() ? layer.taus() : std::vector<double>{};
  }

 private:
  std::vector<double> taus_;
};

}  // namespace

std::vector<int64_t> layers_that_may_reuse(const AttentionPlan& plan) {
  std::vector<int64_t> layers;
  InForce in_force;
  for (int64_t i = 0; i < std::ssize(plan.layers); ++i) {
    const LayerPlan& layer = plan.layers[static_cast<size_t>(i)];
    if (in_force.may_reuse(layer)) layers.push_back(i);
    in_force.pass(layer);
  }
  return layers;
}

AttentionPlan with_reuse(AttentionPlan plan, std::span<const int64_t> layers) {
  InForce in_force;
  for (int64_t i = 0; i < std::ssize(plan.layers); ++i) {
    LayerPlan& layer = plan.layers[static_cast<size_t>(i)];
    if (in_force.may_reuse(layer) && std::find(layers.begin(), layers.end(), i) != layers.end()) {
      layer.reuse = true;
      for (HeadPlan& head : layer.heads)
        if (head.kind == HeadKind::kClusters)
          head.tau = in_force.taus()[nearest_set(in_force.taus(), head.tau)];
    }
    in_force.pass(layer);
  }
  return plan;
}

}  // namespace sluice::impl
