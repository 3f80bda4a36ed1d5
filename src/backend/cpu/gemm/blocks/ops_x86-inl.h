// Vector operations of AVX2, FMA and F16C for group-inl.h; included inside of a namespace.

// NOLINTBEGIN(llvm-header-guard): included once per file.

// Groups at once: a Xeon core reads 11 GB/s in one stream, 17 in four or eight. Which is fastest
// depends on the type by a few percent.
constexpr int kStreams = 8;

struct X86Vectors {
  static constexpr int kBytes = 32, kVectors = 2, kXRows = 1, kXBytes = 8;
  static constexpr int64_t kAhead = 1152, kLargeAhead = 1152;
  using Bytes = __m256i;
  using Ints = __m256i;  // two partial sums of each of four rows
  using Rows = __m256i;
  using Floats = __m256;

  static Bytes load(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Bytes low_nibbles(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi8(0xf)); }
  static Bytes high_nibbles(Bytes x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
  // What shifts of 16 bits carry into the next byte is outside of the mask.
  template <int kNibble, int kFrom, int kMask>
  static Bytes join(Bytes both, Bytes bits) {
    if constexpr (kFrom < 4) bits = _mm256_slli_epi16(bits, 4 - kFrom);
    if constexpr (kFrom > 4) bits = _mm256_srli_epi16(bits, kFrom - 4);
    return _mm256_or_si256(kNibble == 0 ? low_nibbles(both) : high_nibbles(both),
                           _mm256_and_si256(bits, _mm256_set1_epi8(kMask)));
  }
  static Bytes load_x(const int8_t* p) {
    return _mm256_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static void add_partials(const Ints (&sums)[kVectors], Rows* rows) {
    *rows = _mm256_permute4x64_epi64(_mm256_hadd_epi32(sums[0], sums[1]), 0b11011000);
  }

  static Ints no_ints() { return _mm256_setzero_si256(); }
  static Ints start(const int32_t* p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Rows no_rows() { return _mm256_setzero_si256(); }
  static Floats no_floats() { return _mm256_setzero_ps(); }
  static Floats repeat(float x) { return _mm256_set1_ps(x); }
  static Rows multiply_add(Rows a, Rows b, Rows c) {
    return _mm256_add_epi32(_mm256_mullo_epi32(a, b), c);
  }
  template <bool kSigned>
  static Rows widen(const uint8_t* p) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return kSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
  }
  // c + x by, which is below 2^15.
  static Rows add_multiple(const uint8_t* x, int32_t by, Rows c) {
    return _mm256_add_epi32(_mm256_madd_epi16(widen<false>(x), _mm256_set1_epi32(by)), c);
  }
  static Floats sums_to_floats(Rows x) { return to_floats(x); }
  static Floats to_floats(Rows x) { return _mm256_cvtepi32_ps(x); }
  static Floats scaled(Floats x, float by) { return _mm256_mul_ps(x, _mm256_set1_ps(by)); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static Floats load_halves(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void store(Floats x, float* to) { _mm256_storeu_ps(to, x); }
};

// NOLINTEND(llvm-header-guard)
