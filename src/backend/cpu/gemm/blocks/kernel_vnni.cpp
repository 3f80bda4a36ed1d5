// Blocks on the dot products of AVX-512 VNNI, in vectors of 256 bits: decoding waits for memory.
// Built with those instructions and called only where the CPU has them, so this file shares no
// inline function with the rest.

#include <utility>

#include "backend/cpu/gemm/blocks/kernel.h"
#include "backend/cpu/gemm/blocks/layout.h"

#if defined(__x86_64__) && defined(__AVX512VNNI__) && defined(__AVX512VL__) && defined(__FMA__) && \
    defined(__F16C__)

#include <immintrin.h>

namespace sluice::impl::cpu::gemm {
namespace {

#include "backend/cpu/gemm/blocks/group-inl.h"
#include "backend/cpu/gemm/blocks/ops_x86-inl.h"

struct VnniDot : X86Vectors {
  template <bool kSigned>
  static Ints dot(Ints sum, Bytes w, Bytes x) {
    return kSigned ? _mm256_dpbusd_epi32(sum, _mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
                   : _mm256_dpbusd_epi32(sum, w, x);
  }
};

GroupFunction group(DType type, int64_t rows, int64_t groups) {
  if (groups == kStreams)
    return rows == 1 ? group_function_of<VnniDot, 1, kStreams>(type)
                     : group_function_of<VnniDot, 2, kStreams>(type);
  switch (rows) {
    case 1:
      return group_function_of<VnniDot, 1, 1>(type);
    case 2:
      return group_function_of<VnniDot, 2, 1>(type);
    case 3:
      return group_function_of<VnniDot, 3, 1>(type);
    default:
      return group_function_of<VnniDot, 4, 1>(type);
  }
}

}  // namespace

const BlockKernel* block_kernel_vnni() {
  // Clang 14 cannot ask for F16C, which every CPU with AVX2 has.
  static const bool has = __builtin_cpu_supports("avx512vnni") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma");
  static const BlockKernel kernel = {
      "AVX-512 VNNI over blocks", XOrder::kPlain, 4, 0, kStreams, group};
  return has ? &kernel : nullptr;
}

}  // namespace sluice::impl::cpu::gemm

#else

namespace sluice::impl::cpu::gemm {

const BlockKernel* block_kernel_vnni() { return nullptr; }

}  // namespace sluice::impl::cpu::gemm

#endif
