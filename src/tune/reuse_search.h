// Layers of a plan for which the sets of the layer before will do.

#pragma once

#include <functional>
#include <vector>

#include "tune/choices.h"

namespace sluice::impl {

// Some of the budget spent on sets that are not chosen anew.
struct Reuse {
  double share = 1;                  // of the budget, for all else
  std::vector<int64_t> layers = {};  // that take the sets of the layer before
  double kl = 0;                     // what they lose, measured one by one
};

// Those first that save most for what they lose, while the whole stays within `most`. kls_of: KL of
// each plan, measured.
Reuse worth_reusing(const Choices& choices, const Chosen& chosen, double most,
                    const std::function<std::vector<double>(const std::vector<Plan>&)>& kls_of);

}  // namespace sluice::impl
