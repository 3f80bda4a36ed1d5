// Vector operations of AVX2, FMA and F16C for group-inl.h; included inside of a namespace.

// NOLINTBEGIN(llvm-header-guard): included once per file.

struct X86Vectors {
  static constexpr int kBytes = 32, kVectors = 2, kXRows = 1, kXBytes = 8;
  using Bytes = __m256i;
  using Ints = __m256i;  // two partial sums of each of four rows
  using Rows = __m256i;
  using Floats = __m256;

  static Bytes load(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Bytes low_nibbles(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi8(0xf)); }
  static Bytes high_nibbles(Bytes x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
  static Bytes merge(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
  // Bits from kFrom on to the place of kMask, whose lowest bit is 4. What shifts of 16 bits carry
  // into the next byte is outside of the mask.
  template <int kFrom, int kMask>
  static Bytes move_bits(Bytes x) {
    if constexpr (kFrom < 4) x = _mm256_slli_epi16(x, 4 - kFrom);
    if constexpr (kFrom > 4) x = _mm256_srli_epi16(x, kFrom - 4);
    return _mm256_and_si256(x, _mm256_set1_epi8(kMask));
  }
  static Bytes load_x(const int8_t* p) {
    return _mm256_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static void add_partials(const Ints (&sums)[kVectors], Rows* rows) {
    *rows = _mm256_permute4x64_epi64(_mm256_hadd_epi32(sums[0], sums[1]), 0b11011000);
  }

  static Ints no_ints() { return _mm256_setzero_si256(); }
  static Rows no_rows() { return _mm256_setzero_si256(); }
  static Floats no_floats() { return _mm256_setzero_ps(); }
  static Rows repeat_int(int32_t x) { return _mm256_set1_epi32(x); }
  static Floats repeat(float x) { return _mm256_set1_ps(x); }
  static Rows add(Rows a, int32_t b) { return _mm256_add_epi32(a, _mm256_set1_epi32(b)); }
  static Rows multiply_add(Rows a, Rows b, Rows c) {
    return _mm256_add_epi32(_mm256_mullo_epi32(a, b), c);
  }
  template <bool kSigned>
  static Rows widen(const uint8_t* p) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return kSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
  }
  static Floats to_floats(Rows x) { return _mm256_cvtepi32_ps(x); }
  static Floats scaled(Floats x, float by) { return _mm256_mul_ps(x, _mm256_set1_ps(by)); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static Floats load_halves(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void store(Floats x, float* to) { _mm256_storeu_ps(to, x); }
};

// NOLINTEND(llvm-header-guard)
