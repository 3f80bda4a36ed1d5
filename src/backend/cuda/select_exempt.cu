// Tokens that are compared with nobody: sinks and outliers.

#include "backend/cuda/early.cuh"
#include "backend/cuda/select_outliers.cuh"

namespace sluice::cuda {
namespace {

__global__ void __launch_bounds__(kMedianTokens)
    exempt_tokens(const __grid_constant__ ExemptArgs args) {
  __shared__ SortedNorms memory;
  wait_for_earlier();
  let_next_begin();
  mark_exempt(args, memory, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
}

}  // namespace

void mark_exempt(Context& context, const ExemptArgs& args) {
  launch_early(context, "exempt_tokens", exempt_tokens,
               dim3(static_cast<unsigned>(ceil_div(args.n, kMedianTokens))), kMedianTokens, args);
}

}  // namespace sluice::cuda
