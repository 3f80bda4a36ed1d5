// Blocks on AVX2. Built with AVX2, FMA and F16C and called only where the CPU has them, so this
// file shares no inline function with the rest.

#include <utility>

#include "backend/cpu/gemm/blocks/kernel.h"
#include "backend/cpu/gemm/blocks/layout.h"

#if defined(__x86_64__) && defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

namespace sluice::impl::cpu::gemm {
namespace {

#include "backend/cpu/gemm/blocks/group-inl.h"
#include "backend/cpu/gemm/blocks/ops_x86-inl.h"

struct Avx2Dot : X86Vectors {
  // Pairs of products fit 16 bits: weights are below 64, or 128 in magnitude, activations 127.
  template <bool kSigned>
  static Ints dot(Ints sum, Bytes w, Bytes x) {
    const __m256i pairs = kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
                                  : _mm256_maddubs_epi16(w, x);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

GroupFunction group(DType type, int64_t rows, int64_t groups) {
  if (groups == kStreams)
    return rows == 1 ? group_function_of<Avx2Dot, 1, kStreams>(type)
                     : group_function_of<Avx2Dot, 2, kStreams>(type);
  return rows == 1 ? group_function_of<Avx2Dot, 1, 1>(type)
                   : group_function_of<Avx2Dot, 2, 1>(type);
}

}  // namespace

const BlockKernel* block_kernel_avx2() {
  // Clang 14 cannot ask for F16C, which every CPU with AVX2 has.
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  static const BlockKernel kernel = {"AVX2 over blocks", XOrder::kPlain, 2, 0, kStreams, group};
  return has ? &kernel : nullptr;
}

}  // namespace sluice::impl::cpu::gemm

#else

namespace sluice::impl::cpu::gemm {

const BlockKernel* block_kernel_avx2() { return nullptr; }

}  // namespace sluice::impl::cpu::gemm

#endif
