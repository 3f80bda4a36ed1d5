// Selection with a basis (docs/algorithm.md, section 5) against selection without.

#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice::impl::bench {

// description: {"name", "kind": "attention", "d_model": [], "n_tokens": [], "redundancy": [] (r /
// T), "dtypes": [], "joint": {"rank": [] (k / d), "rows": [{"rest", "common"}]}}, where rest is the
// norm that the basis leaves of a unit row and common the cosine of rows of different clusters.
// Prints a row per case and appends to results["cases"].
void run_joint_cases(const nlohmann::json& description, int repeat, nlohmann::json& results);

}  // namespace sluice::impl::bench
