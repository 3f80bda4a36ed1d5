#include <nlohmann/json.hpp>

#include "core/error.h"
#include "cuda_cases.h"

namespace sluice::impl::bench {

std::string no_cuda_reason() { return "this build has no CUDA backend"; }

void run_cuda_case(const nlohmann::json&, int, nlohmann::json&) { throw Error(no_cuda_reason()); }

}  // namespace sluice::impl::bench
