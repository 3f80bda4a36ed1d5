// One linear layer while decoding: gated by a subspace, or graded, against dense.

#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice::bench {

// description: {"name", "kind": "linear", "rank_divisor", "kept": [shares], "dtypes": [],
// "groups": [{"name", "n_in", "n_out"}]}. Prints a table per group and dtype, and appends to
// results["cases"].
void run_linear_cases(const nlohmann::json& description, int repeat, nlohmann::json& results);

}  // namespace sluice::bench
