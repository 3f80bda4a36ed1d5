// Which choices are worth their loss: the plan of least cost among those of a predicted KL.
//
// KLs of single changes are added up. With a price on KL every layer is chosen by itself: the
// window, and in mode `keys` the pair of thresholds, at which its heads, each with its cheapest
// choice, cost least, sets included. The price is then moved until the sum of KLs is what is
// allowed.

#pragma once

#include <functional>
#include <vector>

#include "plan/plan.h"
#include "tune/heads.h"

namespace sluice::impl {

// Costs are in one unit: milliseconds, or bytes.
struct LayerCosts {
  double dense_head = 0;                  // attention of one head, all of the layer's being exact
  std::vector<double> exact_head;         // (windows) of one exact head among changed ones
  std::vector<std::vector<double>> head;  // (windows, HeadOptions::n_costs) of one head so changed
  // The same: finding the set (a window's exempt tokens); 0 in mode `refine`.
  std::vector<std::vector<double>> select;

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(dense_head, exact_head, head, select);
  }
};

struct HeadTable {
  HeadOptions options;
  int64_t n_layers = 0, n_heads = 0;  // key/value heads
  std::vector<LayerCosts> costs;      // (n_layers)
  std::vector<double> kl;             // (n_layers, n_heads, windows, choices)

  size_t at(const HeadChange& change) const;
  // What a layer of a plan costs whose heads, windows and thresholds are among the options.
  double cost_of(int64_t layer, const LayerPlan& plan) const;
  double cost_of(const AttentionPlan& plan) const;  // of all layers
};

struct GroupOption {
  GroupPlan plan;
  double kl = 0, cost = 0;
};
// The choices of one layer's linear input; the first is dense.
struct GroupTable {
  int64_t layer = 0;
  BasisInput input = BasisInput::kAttentionInput;
  std::vector<GroupOption> options;
};

struct Chosen {
  Plan plan;
  double kl = 0;    // predicted: the sum of the changes'
  double cost = 0;  // of all that may change
};

// price: cost that one nat of KL must save at least.
Chosen choose_at(const HeadTable& heads, const std::vector<GroupTable>& groups,
                 const PlanShape& shape, double price);

// The cheapest of a predicted KL of at most `budget`.
Chosen choose(const HeadTable& heads, const std::vector<GroupTable>& groups, const PlanShape& shape,
              double budget);

}  // namespace sluice::impl
