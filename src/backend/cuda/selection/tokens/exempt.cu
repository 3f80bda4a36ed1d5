// Tokens that are compared with nobody: sinks and outliers.

#include "backend/cuda/runtime/dependent_launch.cuh"
#include "backend/cuda/selection/common/outliers.cuh"

namespace sluice::impl::cuda::selection {
namespace {

__global__ void __launch_bounds__(kMedianTokens)
    exempt_tokens(const __grid_constant__ ExemptArgs args) {
  __shared__ SortedNorms memory;
  wait_on_dependency();
  launch_dependents();
  mark_exempt(args, memory, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
}

}  // namespace

void mark_exempt(Context& context, const ExemptArgs& args) {
  launch_programmatic(context, "exempt_tokens", exempt_tokens,
                      dim3(static_cast<unsigned>(ceil_div(args.n, kMedianTokens))), kMedianTokens,
                      args);
}

}  // namespace sluice::impl::cuda::selection
