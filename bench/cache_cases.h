// Attention of one token over a dense cache, against a plain read of the same bytes.

#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice::impl::bench {

// description: {"name", "n_heads", "n_kv_heads", "head_dim", "n_layers", "n_tokens": [rows of the
// cache], "dtypes": [], "caches": ["exact", "int8"]}. A sample goes over all layers, so that no
// layer is found in the CPU's caches. Prints a table of the fastest samples, the share being the
// read's time over that of attention, and appends to results["cases"].
void run_cache_case(const nlohmann::json& description, int repeat, nlohmann::json& results);

}  // namespace sluice::impl::bench
