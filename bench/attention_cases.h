// Selection and attention on representatives against dense attention, at planted redundancy.

#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice::impl::bench {

// description: {"name", "kind": "attention", "d_model": [], "head_dim", "n_tokens": [],
// "redundancy": [] (r / T) or "n_reps": [], "dtypes": [], "causal"}, or what joint_cases.h takes.
// Prints a row per case and appends to results["cases"].
void run_attention_cases(const nlohmann::json& description, int repeat, nlohmann::json& results);

}  // namespace sluice::impl::bench
