// A chunk of 32 weights (gemm/blocks/layout.h) in a vector of AVX-512. Included in an unnamed
// namespace, by one file for each instruction set.

// NOLINTBEGIN(llvm-header-guard): included once per file.

// Unsigned weights of chunk J; 8 bits with 128 added.
template <int kBits, int J>
[[gnu::always_inline]] inline __m512i chunk_bytes(const uint8_t* sub) {
  if constexpr (kBits == 8) {
    return _mm512_xor_si512(_mm512_loadu_si512(sub + J * 64), _mm512_set1_epi8(-128));
  } else {
    constexpr int kHigh = kBits == 5 ? 32 : kBits == 6 ? 64 : 0;
    __m512i low = _mm512_loadu_si512(sub + kHigh + J % 2 * 64);
    if constexpr (J >= 2) low = _mm512_srli_epi16(low, 4);
    low = _mm512_and_si512(low, _mm512_set1_epi8(0xf));
    if constexpr (kBits == 5) {  // bit J of 32 bytes, then bit J + 4
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sub));
      const __m512i both = _mm512_broadcast_i64x4(bytes);
      const __m512i bits = _mm512_inserti64x4(_mm512_set1_epi8(static_cast<char>(1 << J)),
                                              _mm256_set1_epi8(static_cast<char>(16 << J)), 1);
      low =
          _mm512_mask_add_epi8(low, _mm512_test_epi8_mask(both, bits), low, _mm512_set1_epi8(0x10));
    } else if constexpr (kBits == 6) {
      __m512i high = _mm512_loadu_si512(sub);
      if constexpr (J < 2) high = _mm512_slli_epi16(high, 4 - 2 * J);
      if constexpr (J > 2) high = _mm512_srli_epi16(high, 2 * J - 4);
      low = _mm512_or_si512(low, _mm512_and_si512(high, _mm512_set1_epi8(0x30)));
    }
    return low;
  }
}

// NOLINTEND(llvm-header-guard)
