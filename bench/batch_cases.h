// Throughput of decoding several sequences together, against one alone.

#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "backend/backend.h"

namespace sluice::impl::bench {

using MakeBackend = std::unique_ptr<Backend> (*)(DType dtype);

// description: {"name", "config": as in config.json, "dtypes": [], "n_tokens": before decoding, on
// average, "sequences": [how many together]}. Lengths of sequences lie between half and one and a
// half of n_tokens. A step is the pass and the scores of every sequence, on the host. Prints a
// table and appends to results["cases"].
void run_batch_case(const nlohmann::json& description, MakeBackend make, int repeat,
                    nlohmann::json& results);

}  // namespace sluice::impl::bench
