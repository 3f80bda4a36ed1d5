// What tune may do with the heads of a layer, and plans in which one head, or one linear group,
// alone is changed, or all are.

#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace sluice::impl {

// Choices for every key/value head. A layer has one window for all of them; near keys count too, so
// small windows are worth a try.
struct HeadOptions {
  AttentionMode mode = AttentionMode::kRefine;  // or kKeys
  std::vector<int64_t> windows = {0};           // of `refine`: the open segment alone
  // Of `keys`, with blocks as long as the window.
  std::vector<double> taus = {0.3, 0.4, 0.5, 0.7, 0.85};  // ascending
  std::vector<FarKey> fars = {FarKey::kCentroid, FarKey::kValues};
  // Of `refine`; infinity reads means only.
  std::vector<double> deltas = {0.003, 0.01, 0.03,
                                0.1,   0.3,  std::numeric_limits<double>::infinity()};  // ascending
  RefinePlan refine = {};    // a tile is no longer than a window
  bool strict = false;       // KLs are those of queries that decide alone, as when decoding
  bool window_alone = true;  // heads may have their window alone; an encoder has none

  bool refines() const { return mode == AttentionMode::kRefine; }
  int64_t tile(int64_t window) const {
    return window > 0 ? std::min(refine.tile, window) : refine.tile;
  }
  // Taus, or deltas.
  const std::vector<double>& thresholds() const { return refines() ? deltas : taus; }
  int64_t n_clusters() const {
    return std::ssize(thresholds()) * (refines() ? 1 : std::ssize(fars));
  }
  // The choices at one window other than dense: clusters at every threshold, in `keys` for each
  // kind of far keys; then the window alone.
  int64_t n_choices() const { return n_clusters() + (window_alone ? 1 : 0); }
  HeadPlan choice(int64_t i) const;
  // What makes a difference in cost: the threshold, then the window alone. Means take no longer to
  // read than single keys.
  int64_t n_costs() const { return std::ssize(thresholds()) + (window_alone ? 1 : 0); }
  size_t cost_of(int64_t choice) const;
  size_t cost_of(const HeadPlan& head) const;  // of one that is not dense
  HeadPlan choice_of_cost(int64_t cost) const;
  bool clusters(int64_t i) const { return i < n_clusters(); }
};

// One of these, for a head of a layer.
struct HeadChange {
  int64_t layer = 0, head = 0;
  size_t window = 0;   // of HeadOptions::windows
  int64_t choice = 0;  // of HeadOptions::choice

  // What it is called where measurements are kept.
  std::string name(const HeadOptions& options) const;
};

// A layer of the mode whose heads are all dense.
LayerPlan exact_layer(const HeadOptions& options, const PlanShape& shape, int64_t window);
AttentionPlan dense_plan(const PlanShape& shape);
// The plan in which every query decides alone.
AttentionPlan with_strict_tiles(AttentionPlan plan);
// All heads exact but one; as KLs are measured.
AttentionPlan plan_with(const HeadChange& change, const HeadOptions& options,
                        const PlanShape& shape);
// All linear groups dense but one.
LinearPlan linear_plan_with(int64_t layer, BasisInput input, const GroupPlan& group,
                            int64_t n_layers);
// All alike.
LinearPlan linear_plan_of_all(const GroupPlan& group, int64_t n_layers);
// All heads of all layers alike that do not stay dense.
AttentionPlan plan_of_all(const HeadOptions& options, int64_t window, const HeadPlan& head,
                          const PlanShape& shape);

}  // namespace sluice::impl
