// Packed blocks straight to the panels of AMX (gemm/gemm_amx.cpp), by AVX-512: a chunk of eight
// rows is one vector of bytes, four of floats, two of bf16, and two permutations make rows of pairs
// of it. Weights come from memory, where a core does not look ahead far enough by itself: it is
// asked for them. Built with those instructions and called only for panels of that kernel, so this
// file shares no inline function with the rest.

#include "backend/cpu/gemm/blocks/expand_tile.h"
#include "backend/cpu/gemm/blocks/layout.h"

#if defined(__x86_64__) && defined(__AVX512BF16__) && defined(__AVX512BW__) && \
    defined(__AVX512VL__) && defined(__F16C__)

#include <immintrin.h>

namespace sluice::impl::cpu::gemm {
namespace {

constexpr int64_t kChunks = kSubBlock / kChunk;
constexpr int64_t kAhead = 2048;  // bytes from the block at work to what is asked for
constexpr int64_t kLine = 64;

[[gnu::always_inline]] inline __m256 load_halves(const uint8_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// Eight small integers.
template <bool kSigned>
[[gnu::always_inline]] inline __m256 load_small(const uint8_t* from) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtepi32_ps(kSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
}

// Numbers of rows, those of rows 2v and 2v + 1 eight times each.
struct RowPairs {
  __m512 at[4];
};
[[gnu::always_inline]] inline RowPairs spread(__m256 rows) {
  const __m512 all = _mm512_castps256_ps512(rows);
  const __m512i first = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
  RowPairs pairs;
  for (int v = 0; v < 4; ++v)
    pairs.at[v] = _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(2 * v)), all);
  return pairs;
}

// Bits from kFrom on to bit 4. What 16-bit shifts carry over from the next byte is masked.
template <int kFrom>
[[gnu::always_inline]] inline __m512i to_bit4(__m512i bytes) {
  if constexpr (kFrom < 4)
    return _mm512_slli_epi16(bytes, static_cast<unsigned>(4 - kFrom));
  else
    return _mm512_srli_epi16(bytes, static_cast<unsigned>(kFrom - 4));
}

// Chunk J of 32 weights, unsigned but for 8 bits.
template <int kBits, int J>
[[gnu::always_inline]] inline __m512i read_chunk(const uint8_t* sub) {
  if constexpr (kBits == 8) {
    return _mm512_loadu_si512(sub + J * 64);
  } else {
    constexpr int kHigh = kBits == 5 ? 32 : kBits == 6 ? 64 : 0;
    __m512i low = _mm512_loadu_si512(sub + kHigh + J % 2 * 64);
    if constexpr (J >= 2) low = _mm512_srli_epi16(low, 4);
    low = _mm512_and_si512(low, _mm512_set1_epi8(0xf));
    if constexpr (kBits == 5) {
      const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sub));
      const __m512i both = _mm512_broadcast_i64x4(high);
      const __m512i bits = _mm512_mask_blend_epi64(0xf0, to_bit4<J>(both), to_bit4<4 + J>(both));
      low = _mm512_or_si512(low, _mm512_and_si512(bits, _mm512_set1_epi8(0x10)));
    }
    if constexpr (kBits == 6) {
      const __m512i bits = to_bit4<2 * J>(_mm512_loadu_si512(sub));
      low = _mm512_or_si512(low, _mm512_and_si512(bits, _mm512_set1_epi8(0x30)));
    }
    return low;
  }
}

template <int V>
[[gnu::always_inline]] inline __m512 widen(__m512i bytes, const RowPairs& scale,
                                           const RowPairs& minimum) {
  const __m512 q = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm512_extracti32x4_epi32(bytes, V)));
  return _mm512_fmadd_ps(q, scale.at[V], minimum.at[V]);
}

// A chunk to its four rows of pairs.
template <int kBits, int kOffset, int J>
[[gnu::always_inline]] inline void put_chunk(const uint8_t* sub, const RowPairs& scale,
                                             const RowPairs& minimum, int64_t nr, uint16_t* to) {
  const __m512i q = _mm512_add_epi8(read_chunk<kBits, J>(sub), _mm512_set1_epi8(kOffset));
  const auto upper = reinterpret_cast<__m512i>(  // rows 0-3, four pairs each
      _mm512_cvtne2ps_pbh(widen<1>(q, scale, minimum), widen<0>(q, scale, minimum)));
  const auto lower = reinterpret_cast<__m512i>(
      _mm512_cvtne2ps_pbh(widen<3>(q, scale, minimum), widen<2>(q, scale, minimum)));
  const __m512i first = _mm512_set_epi32(29, 25, 21, 17, 13, 9, 5, 1, 28, 24, 20, 16, 12, 8, 4, 0);
  const __m512i pairs01 = _mm512_permutex2var_epi32(upper, first, lower);
  const __m512i pairs23 =
      _mm512_permutex2var_epi32(upper, _mm512_add_epi32(first, _mm512_set1_epi32(2)), lower);
  const auto put = [&](int pair, __m256i rows) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + (J * kChunk + 2 * pair) * nr), rows);
  };
  put(0, _mm512_castsi512_si256(pairs01));
  put(1, _mm512_extracti64x4_epi64(pairs01, 1));
  put(2, _mm512_castsi512_si256(pairs23));
  put(3, _mm512_extracti64x4_epi64(pairs23, 1));
}

template <DType kType>
void expand(const std::byte* blocks, int64_t n_blocks, int64_t nr, uint16_t* to) {
  constexpr BlockLayout kLayout = kBlockLayout<kType>;
  constexpr int kBits = kLayout.bits, kOffset = kLayout.offset;
  constexpr int64_t kScales = kSubBlock / kLayout.scale_width;  // of 32 weights
  static_assert(kChunks == 4 && kScales <= 2);
  const auto* block = reinterpret_cast<const uint8_t*>(blocks);
  for (int64_t b = 0; b < n_blocks; ++b, block += kLayout.bytes) {
    for (int64_t i = 0; i < kLayout.bytes; i += kLine)
      _mm_prefetch(block + kAhead + i, _MM_HINT_T0);
    const __m256 d = load_halves(block);
    const __m256 m = kLayout.minima ? load_halves(block + 2 * kGroupRows) : _mm256_setzero_ps();
    const uint8_t *scales = block + kLayout.scales, *sub = block + kLayout.weights;
    for (int64_t s = 0; s < kLayout.block / kSubBlock; ++s, sub += kLayout.sub_bytes) {
      RowPairs scale[2], minimum;
      if constexpr (kLayout.scales == 0) {
        scale[0] = spread(d);
        minimum = spread(m);
      } else {
        for (int64_t i = 0; i < kScales; ++i)
          scale[i] = spread(_mm256_mul_ps(
              d, load_small<!kLayout.minima>(scales + kGroupRows * (s * kScales + i))));
        // m is 0 without minima.
        minimum = spread(
            kLayout.minima ? _mm256_sub_ps(_mm256_setzero_ps(),
                                           _mm256_mul_ps(m, load_small<false>(scales + 64 + 8 * s)))
                           : m);
      }
      put_chunk<kBits, kOffset, 0>(sub, scale[0], minimum, nr, to);
      put_chunk<kBits, kOffset, 1>(sub, scale[0], minimum, nr, to);
      put_chunk<kBits, kOffset, 2>(sub, scale[kScales - 1], minimum, nr, to);
      put_chunk<kBits, kOffset, 3>(sub, scale[kScales - 1], minimum, nr, to);
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
