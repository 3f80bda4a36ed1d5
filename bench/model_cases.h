// Speed of prefill and decode of a model of real shapes with random weights, against what the
// machine can do at best in the same run: bare matrix products, and a plain read of memory.

#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice::impl::bench {

// description: {"name", "config": as in config.json, "dtypes": [], "prefill": [tokens], "decode":
// [tokens before]}. Prints a line per length and appends to results["cases"].
void run_model_case(const nlohmann::json& description, int repeat, nlohmann::json& results);

}  // namespace sluice::impl::bench
