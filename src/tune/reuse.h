// Layers of a plan that take the sets of the selected layer before as they are, in place of their
// own.

#pragma once

#include <span>
#include <vector>

#include "plan/attention_plan.h"

namespace sluice::impl {

// Those that cluster by sets of their own and have a layer with sets before them.
std::vector<int64_t> layers_that_may_reuse(const AttentionPlan& plan);

// The plan in which those of `layers` do that may: their heads take the nearest tau that there is.
AttentionPlan with_reuse(AttentionPlan plan, std::span<const int64_t> layers);

}  // namespace sluice::impl
