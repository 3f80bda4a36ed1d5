// Packed blocks straight to the panels of AMX (gemm/gemm_amx.cpp), by AVX-512: of a chunk, eight
// weights of eight rows, one permutation of bytes makes the 32-bit integers of two columns of all
// rows, which is a row of pairs. Weights come from memory, where a core does not look ahead far
// enough by itself: they are prefetched. Built with those instructions and called only for panels
// of that kernel, so this file shares no inline function with the rest.

#include "backend/cpu/gemm/blocks/expand_tile.h"
#include "backend/cpu/gemm/blocks/layout.h"

#if defined(__x86_64__) && defined(__AVX512BF16__) && defined(__AVX512BW__) && \
    defined(__AVX512VL__) && defined(__AVX512VBMI__) && defined(__F16C__)

#include <immintrin.h>

namespace sluice::impl::cpu::gemm {
namespace {

#include "backend/cpu/gemm/blocks/chunk_avx512-inl.h"

constexpr int64_t kChunks = kSubBlock / kChunk;
constexpr int64_t kAhead = 2048;  // bytes from the block at work to what is prefetched
constexpr uintptr_t kLine = 64;

// `n` bytes, `ahead` of an address: it may lie behind the matrix, where a prefetch does nothing.
[[gnu::always_inline]] inline void prefetch(const uint8_t* from, int64_t ahead, int64_t n) {
  const auto address = reinterpret_cast<uintptr_t>(from) + static_cast<uintptr_t>(ahead);
  for (uintptr_t i = 0; i < static_cast<uintptr_t>(n); i += kLine)
    _mm_prefetch(reinterpret_cast<const char*>(address + i), _MM_HINT_T0);
}

[[gnu::always_inline]] inline __m256 load_halves(const uint8_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// Eight small integers.
template <bool kSigned>
[[gnu::always_inline]] inline __m256 load_small(const uint8_t* from) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtepi32_ps(kSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
}

// Numbers of rows, each twice.
[[gnu::always_inline]] inline __m512 spread(__m256 rows) {
  const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
  return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(rows));
}

// Columns 2 kPair and 2 kPair + 1 of a chunk's rows as floats.
template <int kPair>
[[gnu::always_inline]] inline __m512 widen(__m512i bytes, __m512 scale, __m512 minimum) {
  // Row r's bytes are 8 r and 8 r + 1; the upper three of every integer become zero.
  const __m512i first =
      _mm512_set_epi32(57, 56, 49, 48, 41, 40, 33, 32, 25, 24, 17, 16, 9, 8, 1, 0);
  const __m512i columns = _mm512_add_epi32(first, _mm512_set1_epi32(2 * kPair));
  const __m512i q = _mm512_maskz_permutexvar_epi8(0x1111111111111111, columns, bytes);
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(q), scale, minimum);
}

// Chunk J of 32 weights to its four rows of pairs.
template <int kBits, int J>
[[gnu::always_inline]] inline void put_chunk(const uint8_t* sub, __m512 scale, __m512 minimum,
                                             int64_t nr, uint16_t* to) {
  const __m512i q = chunk_bytes<kBits, J>(sub);
  const auto put = [&](int pair, __m512 first, __m512 second) {
    const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
    auto* const row = to + (J * kChunk + 2 * pair) * nr;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row), _mm512_castsi512_si256(both));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + 2 * nr),
                        _mm512_extracti64x4_epi64(both, 1));
  };
  put(0, widen<0>(q, scale, minimum), widen<1>(q, scale, minimum));
  put(2, widen<2>(q, scale, minimum), widen<3>(q, scale, minimum));
}

template <DType kType>
void expand(const std::byte* blocks, int64_t n_blocks, int64_t nr, uint16_t* to) {
  constexpr BlockLayout kLayout = kBlockLayout<kType>;
  constexpr int kBits = kLayout.bits;
  constexpr auto kOffset = static_cast<float>(unsigned_offset(kLayout));
  constexpr int64_t kScales = kSubBlock / kLayout.scale_width;  // of 32 weights
  static_assert(kChunks == 4 && kScales <= 2);
  const auto* block = reinterpret_cast<const uint8_t*>(blocks);
  for (int64_t b = 0; b < n_blocks; ++b, block += kLayout.bytes) {
    prefetch(block, kAhead, kLayout.bytes);
    const __m256 d = load_halves(block);
    const __m256 m = kLayout.minima ? load_halves(block + 2 * kGroupRows) : _mm256_setzero_ps();
    const uint8_t *scales = block + kLayout.scales, *sub = block + kLayout.weights;
    for (int64_t s = 0; s < kLayout.block / kSubBlock; ++s, sub += kLayout.sub_bytes) {
      __m512 scale[kScales], minimum[kScales];
      for (int64_t i = 0; i < kScales; ++i) {
        const int64_t at = s * kScales + i;
        scale[i] =
            spread(kLayout.scales == 0
                       ? d
                       : _mm256_mul_ps(d, load_small<!kLayout.minima>(scales + kGroupRows * at)));
        if constexpr (!kLayout.minima)
          minimum[i] = _mm512_mul_ps(scale[i], _mm512_set1_ps(kOffset));
        else if constexpr (kLayout.scales == 0)
          minimum[i] = spread(m);
        else
          minimum[i] = spread(_mm256_sub_ps(
              _mm256_setzero_ps(), _mm256_mul_ps(m, load_small<false>(scales + 64 + 8 * at))));
      }
      put_chunk<kBits, 0>(sub, scale[0], minimum[0], nr, to);
      put_chunk<kBits, 1>(sub, scale[0], minimum[0], nr, to);
      put_chunk<kBits, 2>(sub, scale[kScales - 1], minimum[kScales - 1], nr, to);
      put_chunk<kBits, 3>(sub, scale[kScales - 1], minimum[kScales - 1], nr, to);
      to += kSubBlock * nr;
    }
  }
}

}  // namespace

ExpandPairsFunction expand_pairs_function(DType type) {
  switch (type) {
    case DType::kQ8_0:
      return expand<DType::kQ8_0>;
    case DType::kQ4_0:
      return expand<DType::kQ4_0>;
    case DType::kQ4_1:
      return expand<DType::kQ4_1>;
    case DType::kQ5_0:
      return expand<DType::kQ5_0>;
    case DType::kQ5_1:
      return expand<DType::kQ5_1>;
    case DType::kQ4_K:
      return expand<DType::kQ4_K>;
    case DType::kQ5_K:
      return expand<DType::kQ5_K>;
    case DType::kQ6_K:
      return expand<DType::kQ6_K>;
    default:
      return nullptr;
  }
}

}  // namespace sluice::impl::cpu::gemm

#else

namespace sluice::impl::cpu::gemm {

ExpandPairsFunction expand_pairs_function(DType) { return nullptr; }

}  // namespace sluice::impl::cpu::gemm

#endif
