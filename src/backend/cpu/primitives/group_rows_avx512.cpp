// NativeGroup on the bf16 instructions of AVX-512 (AVX512_BF16). Built with these and called only
// where the CPU has them, so this file shares no inline function with the rest.
//
// Decoding waits for memory. So rows are read in several stretches side by side, and the rows of
// the next pass are prefetched while this one multiplies.

#include "backend/cpu/primitives/group_rows.h"

#if defined(__x86_64__) && defined(__AVX512BF16__) && defined(__AVX512BW__)

#include <immintrin.h>

namespace sluice::impl::cpu::primitives {
namespace {

using Group = GroupRows<BFloat16>;
constexpr int64_t kWidth = 32;   // bf16 numbers of a vector
constexpr int64_t kQuad = 4;     // rows at once: their sums stay in registers
constexpr int kMostQueries = 4;  // at once, for the same reason
// Rows are read in as many stretches side by side: a Xeon core reads 11 GB/s in one, 17 in four.
constexpr int kStreams = 4;

// Rows of a stretch, whole quads.
inline int64_t stretch_of(int64_t n) {
  constexpr int64_t kRound = kStreams * kQuad;
  return (n + kRound - 1) / kRound * kQuad;
}

// Numbers of a row of d from k on, zeros behind it.
struct Columns {
  __mmask32 of_row;
  Columns(int64_t d, int64_t k)
      : of_row(d - k >= kWidth ? ~0u : (1u << static_cast<unsigned>(d - k)) - 1) {}
  __m512bh load(const BFloat16* p) const {
    return reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(of_row, p));
  }
};

void pack(const BFloat16* from, int64_t n_queries, int64_t d, BFloat16* to) {
  for (int64_t i = 0; i < n_queries * d; ++i) to[i] = from[i];
}

// Adds up lanes of four vectors as far as they are in the same quarter: (sum of a, b, c, d) in
// each.
inline __m512 quarter_sums(const __m512 (&v)[kQuad]) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  const auto low = _mm512_shuffle_ps(ab, cd, 0x44), high = _mm512_shuffle_ps(ab, cd, 0xee);
  return _mm512_add_ps(low, high);
}
// Adds up the quarters of each vector: quarter i of the result is of vector i.
inline __m512 whole_sums(const __m512 (&v)[kStreams]) {
  const auto halves = [](__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  return halves(halves(v[0], v[1]), halves(v[2], v[3]));
}

// Products of four rows with kQueries queries, summed within quarters. Where the pass ends within
// them, the last row is repeated.
template <int kQueries>
inline void dot_quad(const Group& group, const BFloat16* queries, int64_t first,
                     __m512 (&sums)[kQueries]) {
  const BFloat16* rows[kQuad];
  for (int r = 0; r < kQuad; ++r) {
    const int64_t row = first + r < group.n ? first + r : group.n - 1;
    rows[r] = group.rows + row * group.d;
  }
  if (first + kQuad <= group.n_next)
    for (int64_t i = 0; i < kQuad * group.d; i += kWidth)
      _mm_prefetch(group.next + first * group.d + i, _MM_HINT_T0);
  __m512 products[kQueries][kQuad];
  for (auto& of_query : products)
    for (auto& sum : of_query) sum = _mm512_setzero_ps();
  for (int64_t k = 0; k < group.d; k += kWidth) {
    const Columns columns(group.d, k);
    __m512bh row[kQuad];
    for (int r = 0; r < kQuad; ++r) row[r] = columns.load(rows[r] + k);
    for (int q = 0; q < kQueries; ++q) {
      const __m512bh query = columns.load(queries + q * group.d + k);
      for (int r = 0; r < kQuad; ++r)
        products[q][r] = _mm512_dpbf16_ps(products[q][r], query, row[r]);
    }
  }
  for (int q = 0; q < kQueries; ++q) sums[q] = quarter_sums(products[q]);
}

template <int kQueries>
void dot_queries(const Group& group, const BFloat16* queries, int64_t first) {
  const int64_t stretch = stretch_of(group.n);
  for (int64_t j = 0; j < stretch; j += kQuad) {
    __m512 sums[kQueries][kStreams];
    for (int i = 0; i < kStreams; ++i) {
      __m512 of_quad[kQueries];
      dot_quad<kQueries>(group, queries, i * stretch + j, of_quad);
      for (int q = 0; q < kQueries; ++q) sums[q][i] = of_quad[q];
    }
    for (int q = 0; q < kQueries; ++q) {
      const __m512 scores = whole_sums(sums[q]);
      float* const to = group.scores + (first + q) * group.score_stride + j;
      const auto put = [&](int64_t i, __m128 quad) {
        if (i * stretch + j < group.n) _mm_storeu_ps(to + i * stretch, quad);
      };
      put(0, _mm512_castps512_ps128(scores));
      put(1, _mm512_extractf32x4_ps(scores, 1));
      put(2, _mm512_extractf32x4_ps(scores, 2));
      put(3, _mm512_extractf32x4_ps(scores, 3));
    }
  }
}

// Calls work.operator()<n>(first) for every n queries that are multiplied at once.
template <typename Work>
void each_queries(int64_t n_queries, const Work& work) {
  for (int64_t first = 0; first < n_queries; first += kMostQueries) {
    switch (n_queries - first) {
      case 1:
        work.template operator()<1>(first);
        break;
      case 2:
        work.template operator()<2>(first);
        break;
      case 3:
        work.template operator()<3>(first);
        break;
      default:
        work.template operator()<4>(first);
    }
  }
}

void dot(const Group& group, const BFloat16* queries) {
  each_queries(group.n_queries, [&]<int kQueries>(int64_t first) {
    dot_queries<kQueries>(group, queries + first * group.d, first);
  });
}

// Sums of kWidth columns, as pairs of rows give them: columns 0-3 of every eight, and 4-7.
struct PairSums {
  __m512 low, high;
  void load(const float* from, __mmask16 second) {
    const __m512 a = _mm512_loadu_ps(from), b = _mm512_maskz_loadu_ps(second, from + 16);
    low = _mm512_shuffle_f32x4(a, b, 0x88);
    high = _mm512_shuffle_f32x4(a, b, 0xdd);
  }
  void store(float* to, __mmask16 second) const {
    const __m512 a = _mm512_shuffle_f32x4(low, high, 0x44);
    const __m512 b = _mm512_shuffle_f32x4(low, high, 0xee);
    _mm512_storeu_ps(to, _mm512_shuffle_f32x4(a, a, 0xd8));
    _mm512_mask_storeu_ps(to + 16, second, _mm512_shuffle_f32x4(b, b, 0xd8));
  }
};

// Columns [k, k + kVectors kWidth) of the rows.
template <int kQueries, int kVectors>
void mix_columns(const Group& group, const BFloat16* weights, float* sums, int64_t k) {
  const Columns columns(group.d, k + (kVectors - 1) * kWidth);  // those before are whole
  const auto second = static_cast<__mmask16>(columns.of_row >> 16);
  PairSums sum[kQueries][kVectors];
  for (int q = 0; q < kQueries; ++q)
    for (int v = 0; v < kVectors; ++v) sum[q][v].load(sums + q * group.d + k + v * kWidth, second);
  const auto add_pair = [&](int64_t j) __attribute__((always_inline)) {
    const BFloat16* const row = group.rows + j * group.d + k;
    const BFloat16* const other = j + 1 < group.n ? row + group.d : row;
    if (j + 1 < group.n_next)
      for (int64_t i = 0; i < 2 * kVectors; ++i)
        _mm_prefetch(group.next + j * group.d + 2 * k + i * kWidth, _MM_HINT_T0);
    for (int v = 0; v < kVectors; ++v) {
      const auto a = reinterpret_cast<__m512i>(columns.load(row + v * kWidth));
      const auto b = reinterpret_cast<__m512i>(columns.load(other + v * kWidth));
      const auto low = reinterpret_cast<__m512bh>(_mm512_unpacklo_epi16(a, b));
      const auto high = reinterpret_cast<__m512bh>(_mm512_unpackhi_epi16(a, b));
      for (int q = 0; q < kQueries; ++q) {
        int32_t pair;
        __builtin_memcpy(&pair, weights + q * group.score_stride + j, sizeof pair);
        const auto weight = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
        sum[q][v].low = _mm512_dpbf16_ps(sum[q][v].low, low, weight);
        sum[q][v].high = _mm512_dpbf16_ps(sum[q][v].high, high, weight);
      }
    }
  };
  const int64_t stretch = stretch_of(group.n);
  for (int64_t first = 0; first < stretch; first += 2)
    for (int64_t j = first; j < group.n; j += stretch) add_pair(j);
  for (int q = 0; q < kQueries; ++q)
    for (int v = 0; v < kVectors; ++v) sum[q][v].store(sums + q * group.d + k + v * kWidth, second);
}

template <int kQueries>
void mix_queries(const Group& group, const BFloat16* weights, float* sums) {
  int64_t k = 0;
  for (; k + 2 * kWidth <= group.d; k += 2 * kWidth)
    mix_columns<kQueries, 2>(group, weights, sums, k);
  for (; k < group.d; k += kWidth) mix_columns<kQueries, 1>(group, weights, sums, k);
}

void mix(const Group& group, const BFloat16* weights, float* sums) {
  each_queries(group.n_queries, [&]<int kQueries>(int64_t first) {
    mix_queries<kQueries>(group, weights + first * group.score_stride, sums + first * group.d);
  });
}

}  // namespace

const NativeGroup* native_group_avx512() {
  static constexpr NativeGroup kernels = {.dot = dot, .mix = mix, .pack = pack};
  static const bool has =
      __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw");
  return has ? &kernels : nullptr;
}

}  // namespace sluice::impl::cpu::primitives

#else

namespace sluice::impl::cpu::primitives {

const NativeGroup* native_group_avx512() { return nullptr; }

}  // namespace sluice::impl::cpu::primitives

#endif
