// The linear layers of a block while decoding: gated by a subspace, or graded, against dense.

#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice::impl::bench {

// description: {"name", "kind": "linear", "rank_divisor", "kept": [shares], "dtypes": [],
// "models": [{"name", "groups": [{"name", "n_in", "n_out"}]}]}. Prints lines for every group and
// for a block, which is all of a model's together, and appends to results["cases"].
void run_linear_cases(const nlohmann::json& description, int repeat, nlohmann::json& results);

}  // namespace sluice::impl::bench
