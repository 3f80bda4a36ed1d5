// Blocks on Arm's matrix products of 8-bit integers (FEAT_I8MM): two rows of weights by two of
// activations by eight k in one instruction. A single row takes dot products, which do as much of
// it. Built with +i8mm+dotprod and called only where the kernel reports both features, so this file
// shares no inline function with the rest.

#include <utility>

#include "backend/cpu/gemm/blocks/kernel.h"
#include "backend/cpu/gemm/blocks/layout.h"

#if defined(__aarch64__) && defined(__linux__) && defined(__ARM_FEATURE_MATMUL_INT8) && \
    defined(__ARM_FEATURE_DOTPROD)

#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

namespace sluice::impl::cpu::gemm {
namespace {

#include "backend/cpu/gemm/blocks/group-inl.h"
#include "backend/cpu/gemm/blocks/ops_arm-inl.h"

struct ArmMatrix : ArmVectors {
  static constexpr int kXRows = 2, kXBytes = 16;
  static int8x16_t load_x(const int8_t* p) { return vld1q_s8(p); }
  template <bool kSigned>
  static Ints dot(Ints sum, Bytes w, int8x16_t x) {
    return vmmlaq_s32(sum, vreinterpretq_s8_u8(w), x);
  }
  // A vector holds (weights 0: x 0, x 1; weights 1: x 0, x 1).
  static void add_partials(const Ints (&sums)[kVectors], Rows* rows) {
    rows[0] = {vuzp1q_s32(sums[0], sums[1]), vuzp1q_s32(sums[2], sums[3])};
    rows[1] = {vuzp2q_s32(sums[0], sums[1]), vuzp2q_s32(sums[2], sums[3])};
  }
};

GroupFunction group(DType type, int64_t rows, int64_t groups) {
  if (groups == 2)
    return rows == 1 ? group_function_of<ArmDot, 1, 2>(type)
                     : group_function_of<ArmMatrix, 2, 2>(type);
  switch (rows) {
    case 1:
      return group_function_of<ArmDot, 1, 1>(type);
    case 2:
      return group_function_of<ArmMatrix, 2, 1>(type);
    case 3:
      return group_function_of<ArmMatrix, 3, 1>(type);
    default:
      return group_function_of<ArmMatrix, 4, 1>(type);
  }
}

}  // namespace

const BlockKernel* block_kernel_i8mm() {
  static const bool has =
      (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0 && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
  static const BlockKernel kernel = {
      "8-bit matrix instructions", XOrder::kPairs, 4, kFirstSum, 2, group};
  return has ? &kernel : nullptr;
}

}  // namespace sluice::impl::cpu::gemm

#else

namespace sluice::impl::cpu::gemm {

const BlockKernel* block_kernel_i8mm() { return nullptr; }

}  // namespace sluice::impl::cpu::gemm

#endif
