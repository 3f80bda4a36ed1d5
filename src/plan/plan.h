// All that a run does other than exactly: attention and linear layers.

#pragma once

#include "plan/attention_plan.h"
#include "plan/linear_plan.h"

namespace sluice {

struct Plan {
  AttentionPlan attention = {};  // without layers: dense
  LinearPlan linear = {};        // the same
};

}  // namespace sluice
