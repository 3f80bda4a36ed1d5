// Speed of prefill and decode of a model of real shapes with random weights, or of a checkpoint,
// against what the machine can do at best in the same run: bare matrix products, and a plain read
// of memory.

#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice::impl::bench {

// description: {"name", "config": as in config.json, or "model": a checkpoint, "dtypes": [],
// "prefill": [tokens], "decode": [tokens before, or 0]}. Prints a line per length and appends to
// results["cases"]; for a checkpoint, first the peak of memory, appended to results["memory"].
void run_model_case(const nlohmann::json& description, int repeat, nlohmann::json& results);

}  // namespace sluice::impl::bench
