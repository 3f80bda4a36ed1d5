// Cases with "device": "cuda". bench/cuda has them; in builds without CUDA bench/no_cuda stands in.

#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice::impl::bench {

// Why no case can run on a CUDA device here, in a few words; nothing where one can.
std::string no_cuda_reason();

// description: {"name", "kind", "device": "cuda"} and the keys of the kind, which the file of that
// kind in bench/cuda lists. repeat: samples of each; 0 takes as many as the kind usually does.
// Prints a table, keeps it in results["tables"] under the name, and appends to results["cases"].
void run_cuda_case(const nlohmann::json& description, int repeat, nlohmann::json& results);

}  // namespace sluice::impl::bench
