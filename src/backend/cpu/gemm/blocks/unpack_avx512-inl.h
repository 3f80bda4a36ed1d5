// Chunks of blocks for unpack_x86-inl.h in vectors of AVX-512, which hold one each. Included after
// it and chunk_avx512-inl.h.

// NOLINTBEGIN(llvm-header-guard): included once per file.

struct Avx512Unpack {
  template <DType kType, int J>
  [[gnu::always_inline]] static void chunk(const uint8_t* sub, int8_t* out) {
    const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m512i rows =
        _mm512_permutexvar_epi32(order, chunk_bytes<kBlockLayout<kType>.bits, J>(sub));
    const auto put = [](int8_t * to, __m256i half) __attribute__((always_inline)) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), half);
    };
    put(out, _mm512_castsi512_si256(rows));
    put(out + kFour, _mm512_extracti64x4_epi64(rows, 1));
  }
};

// NOLINTEND(llvm-header-guard)
