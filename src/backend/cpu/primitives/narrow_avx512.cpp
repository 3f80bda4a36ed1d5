// narrow() on the bf16 instructions of AVX-512 (AVX512_BF16). Built with these and called only
// where the CPU has them, so this file shares no inline function with the rest.

#include "backend/cpu/primitives/narrow.h"

#if defined(__x86_64__) && defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512DQ__)

#include <immintrin.h>

namespace sluice::impl::cpu::primitives {
namespace {

constexpr int64_t kLanes = 16, kWidth = 2 * kLanes;

[[gnu::always_inline]] inline __mmask16 subnormal(__m512 x) {
  return _mm512_fpclass_ps_mask(x, 0x20);
}

// The instruction takes subnormal numbers for zeros: vectors that have one are rounded as integers,
// up to the even one of two bf16 numbers as near.
[[gnu::noinline]] __m512i round_integers(__m512 low, __m512 high) {
  const auto round = [](__m512 x) {
    const __m512i bits = _mm512_castps_si512(x), odd = _mm512_srli_epi32(bits, 16);
    const __m512i half =
        _mm512_add_epi32(_mm512_and_si512(odd, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, odd, _mm512_set1_epi32(0x40)));
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(round(low)), round(high), 1);
}

void narrow(const float* from, int64_t n, BFloat16* to) {
  for (; n > 0; n -= kWidth, from += kWidth, to += kWidth) {
    const auto some = n < kWidth ? (1u << static_cast<unsigned>(n)) - 1 : ~0u;
    const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(some), from);
    const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(some >> 16), from + kLanes);
    auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    if ((subnormal(low) | subnormal(high)) != 0) [[unlikely]]
      rounded = round_integers(low, high);
    _mm512_mask_storeu_epi16(to, some, rounded);
  }
}

}  // namespace

NarrowFunction narrow_avx512() {
  static const bool has = __builtin_cpu_supports("avx512bf16") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  return has ? narrow : nullptr;
}

}  // namespace sluice::impl::cpu::primitives

#else

namespace sluice::impl::cpu::primitives {

NarrowFunction narrow_avx512() { return nullptr; }

}  // namespace sluice::impl::cpu::primitives

#endif
