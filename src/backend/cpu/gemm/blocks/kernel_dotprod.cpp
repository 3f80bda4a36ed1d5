// Blocks on Arm's dot products of 8-bit integers (FEAT_DotProd). Built with +dotprod and called
// only where the kernel reports the feature, so this file shares no inline function with the rest.

#include <utility>

#include "backend/cpu/gemm/blocks/kernel.h"
#include "backend/cpu/gemm/blocks/layout.h"

#if defined(__aarch64__) && defined(__linux__) && defined(__ARM_FEATURE_DOTPROD)

#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

namespace sluice::impl::cpu::gemm {
namespace {

#include "backend/cpu/gemm/blocks/group-inl.h"
#include "backend/cpu/gemm/blocks/ops_arm-inl.h"

GroupFunction group(DType type, int64_t rows, int64_t groups) {
  if (groups == 2)
    return rows == 1 ? group_function_of<ArmDot, 1, 2>(type)
                     : group_function_of<ArmDot, 2, 2>(type);
  return rows == 1 ? group_function_of<ArmDot, 1, 1>(type) : group_function_of<ArmDot, 2, 1>(type);
}

}  // namespace

const BlockKernel* block_kernel_dotprod() {
  static const bool has = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  static const BlockKernel kernel = {
      "dot product instructions", XOrder::kDoubled, 2, kFirstSum, 2, group};
  return has ? &kernel : nullptr;
}

}  // namespace sluice::impl::cpu::gemm

#else

namespace sluice::impl::cpu::gemm {

const BlockKernel* block_kernel_dotprod() { return nullptr; }

}  // namespace sluice::impl::cpu::gemm

#endif
