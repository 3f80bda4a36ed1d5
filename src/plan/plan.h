// All that a run does other than exactly: attention and linear layers.

#pragma once

#include <string>

#include "plan/attention_plan.h"
#include "plan/linear_plan.h"

namespace sluice::impl {

struct Plan {
  AttentionPlan attention = {};  // without layers: dense
  LinearPlan linear = {};        // the same

  bool operator==(const Plan&) const = default;
};

// One choice for all layers.
struct UniformChoice {
  UniformAttention attention = {};
  UniformLinear linear = {};
  std::string file = {};  // the name of a plan file, which says more than the other two

  // Whether nothing is done other than exactly.
  bool all_exact() const {
    return file.empty() && attention.all_exact() && linear.kind == LinearKind::kDense;
  }
};

inline Plan uniform_plan(const UniformChoice& choice, const PlanShape& shape,
                         const LinearShape& linear) {
  return {.attention = uniform_plan(choice.attention, shape),
          .linear = uniform_linear_plan(choice.linear, linear)};
}

}  // namespace sluice::impl
