// Choices of attention and whole plans as they stand in results.json: docs/results.md, "eval".

#pragma once

#include <nlohmann/json_fwd.hpp>

#include "plan/attention_plan.h"
#include "plan/linear_plan.h"
#include "plan/plan.h"

namespace sluice::impl {

// The `settings` of a choice, its defaults filled in.
nlohmann::json describe_attention(const UniformAttention& choice, const PlanShape& shape);

// The `plan`: what every layer and key/value head does. In a dense layer all n_kv_heads are dense.
nlohmann::json describe_plan(const AttentionPlan& plan, int64_t n_kv_heads);

// The same of linear layers: the `settings` of a choice, and what each layer's inputs do where they
// are not dense.
nlohmann::json describe_linear(const UniformLinear& choice);
nlohmann::json describe_linear_plan(const LinearPlan& plan);

// Both, or the name of the plan file.
nlohmann::json describe_choice(const UniformChoice& choice, const PlanShape& shape);

}  // namespace sluice::impl
