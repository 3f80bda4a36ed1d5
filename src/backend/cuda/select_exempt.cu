// Tokens that are compared with nobody: sinks and outliers.

#include "backend/cuda/early.cuh"
#include "backend/cuda/exact.cuh"
#include "backend/cuda/select_outliers.cuh"

namespace sluice::cuda {
namespace {

template <bool kOutliers>
__global__ void exempt_tokens(const __grid_constant__ ExemptArgs args) {
  wait_for_earlier();
  let_next_begin();
  const int64_t t = int64_t{blockIdx.x} * kMedianTokens + threadIdx.x;
  bool exempt = args.first + t < args.sinks;
  if constexpr (kOutliers) {
    __shared__ SortedNorms memory;
    exempt |= is_outlier(args, t, memory, blockIdx.x == 0);
  }
  if (t >= args.n) return;
  args.exempt[t] = exempt ? 1 : 0;
}

}  // namespace

void mark_exempt(Context& context, const ExemptArgs& args) {
  launch_early(context, "exempt_tokens",
               args.residual_inverse != nullptr ? exempt_tokens<true> : exempt_tokens<false>,
               dim3(static_cast<unsigned>(ceil_div(args.n, kMedianTokens))), kMedianTokens, args);
}

}  // namespace sluice::cuda
