// Passes of a model that is divided over the ranks of mpirun, against what the cost model of
// docs/scale.md says of them.

#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice::impl::bench {

// description: {"name", "config": as in config.json, "dtypes": [], "prefill": tokens of a pass,
// "decode": tokens before those that are decoded}. Every rank calls it. The model's seconds are
// those of computing, measured with ranks that send nothing, and a latency for each message and a
// speed for its bytes, measured on messages alone. Prints tables and appends to results["cases"].
void run_ranks_case(const nlohmann::json& description, int repeat, nlohmann::json& results);

}  // namespace sluice::impl::bench
