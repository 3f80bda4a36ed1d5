// What may be chosen: the KLs and costs of all single changes, and the plans that they give.

#pragma once

#include <span>
#include <vector>

#include "tune/changes.h"
#include "tune/choose.h"
#include "tune/times.h"

namespace sluice::impl {

class Choices {
 public:
  Choices(const PlanShape& shape, const CostOptions& options, const Costs& costs,
          const Changes& changes);

  // The cheapest plan of a predicted KL of at most `budget`.
  Chosen within(double budget) const { return choose(heads_, groups_, shape_, budget); }
  // The same with sets of the layer before in some layers, whose KL is not known.
  Chosen reusing(Chosen chosen, std::span<const int64_t> layers) const;
  double dense_cost() const;

 private:
  PlanShape shape_;
  HeadTable heads_;
  std::vector<GroupTable> groups_;
};

}  // namespace sluice::impl
