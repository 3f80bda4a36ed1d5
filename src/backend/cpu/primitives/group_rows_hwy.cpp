// The kernels of primitives/group_rows.h in portable SIMD, for every instruction set Highway
// compiles here.

#include "backend/cpu/primitives/group_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/primitives/group_rows_hwy.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // first: it includes this file once per target
#include <hwy/highway.h>
// clang-format on
#include <hwy/cache_control.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::impl::cpu::primitives::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

const hn::ScalableTag<float> kF;
using Vector = hn::Vec<decltype(kF)>;

HWY_INLINE int64_t lanes() { return static_cast<int64_t>(hn::Lanes(kF)); }

HWY_INLINE Vector load(const float* p) { return hn::LoadU(kF, p); }
HWY_INLINE Vector load(const BFloat16* p) {
  return hn::PromoteTo(kF, hn::LoadU(hn::Rebind<hwy::bfloat16_t, decltype(kF)>(),
                                     reinterpret_cast<const hwy::bfloat16_t*>(p)));
}
HWY_INLINE Vector load(const int8_t* p) {
  const hn::Rebind<int32_t, decltype(kF)> ints;
  return hn::ConvertTo(kF, hn::PromoteTo(ints, hn::LoadU(hn::Rebind<int8_t, decltype(kF)>(), p)));
}
// Two vectors of numbers that follow each other.
template <typename T>
HWY_INLINE void load_two(const T* p, Vector& first, Vector& second) {
  first = load(p);
  second = load(p + lanes());
}
#if HWY_ARCH_ARM_A64
// A bf16 number is the upper half of an f32 one. Highway's PromoteTo is two shifts, which only one
// of two vector pipes of a Neoverse-N1 can do.
HWY_INLINE void load_two(const BFloat16* p, Vector& first, Vector& second) {
  const hn::ScalableTag<uint16_t> halves;
  const auto both = hn::LoadU(halves, reinterpret_cast<const uint16_t*>(p));
  first = hn::BitCast(kF, hn::InterleaveLower(halves, hn::Zero(halves), both));
  second = hn::BitCast(kF, hn::InterleaveUpper(halves, hn::Zero(halves), both));
}
#endif

HWY_INLINE float number(int8_t x) { return static_cast<float>(x); }
template <typename T>
HWY_INLINE float number(T x) {
  return to_float(x);
}

// Rows at once: a vector of a query is loaded once for all of them, a row is widened once for all
// queries.
constexpr int kRows = 4;
// Queries at once: their sums stay in registers. Before AVX-512, x86 has 16 of these.
constexpr int64_t kMostQueries = HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3 ? 2 : 4;
using FourSums = hn::CappedTag<float, kRows>;

// Rows are read in so many stretches side by side: a core of x86 draws more from memory so. On Arm
// that was not timed.
constexpr int64_t kStreams = HWY_ARCH_X86 ? 4 : 1;

// Rows of a stretch, a multiple of kRows.
HWY_INLINE int64_t stretch_of(int64_t n) {
  constexpr int64_t kRound = kStreams * kRows;
  return (n + kRound - 1) / kRound * kRows;
}

// Prefetches rows [j, j + n) of the next pass.
template <typename T>
HWY_INLINE void prefetch_next(const GroupRows<T>& group, int64_t j, int64_t n) {
  constexpr int64_t kLine = 64 / int64_t{sizeof(T)};
  if (!HWY_ARCH_X86) return;
  const int64_t end = HWY_MIN(j + n, group.n_next) * group.d;
  for (int64_t i = j * group.d; i < end; i += kLine) hwy::Prefetch(group.next + i);
}

// The sum of the lanes of each of four vectors.
#if HWY_ARCH_ARM_A64
HWY_INLINE hn::Vec<FourSums> lane_sums(const Vector (&v)[kRows]) {
  return Vector(vpaddq_f32(vpaddq_f32(v[0].raw, v[1].raw), vpaddq_f32(v[2].raw, v[3].raw)));
}
#else
template <class D>
HWY_INLINE hn::Vec<FourSums> folded(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) <= kRows) {
    return v;
  } else {
    const hn::Half<D> half;
    return folded(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
HWY_INLINE Vector pair_sums(Vector a, Vector b) {
  return hn::Add(hn::InterleaveLower(kF, a, b), hn::InterleaveUpper(kF, a, b));
}
HWY_INLINE hn::Vec<FourSums> lane_sums(const Vector (&v)[kRows]) {
  return folded(kF, pair_sums(pair_sums(v[0], v[2]), pair_sums(v[1], v[3])));
}
#endif

// Rows [j, j + kRows). Where the pass ends within them, the last row is repeated, so that a score
// does not depend on the rows next to it.
template <int kQueries, typename T>
HWY_INLINE void dot_rows(const GroupRows<T>& group, const float* queries, float* scores,
                         int64_t j) {
  const int64_t d = group.d, n = HWY_MIN(kRows, group.n - j);
  prefetch_next(group, j, n);
  const T* rows[kRows];
  for (int r = 0; r < kRows; ++r) rows[r] = group.rows + (j + HWY_MIN(r, n - 1)) * d;
  Vector sums[kQueries][kRows];
  for (auto& query : sums)
    for (auto& sum : query) sum = hn::Zero(kF);
  int64_t i = 0;
  for (; i + 2 * lanes() <= d; i += 2 * lanes()) {
    Vector even[kQueries], odd[kQueries];
    for (int q = 0; q < kQueries; ++q) load_two(queries + q * d + i, even[q], odd[q]);
    for (int r = 0; r < kRows; ++r) {
      Vector a, b;
      load_two(rows[r] + i, a, b);
      for (int q = 0; q < kQueries; ++q) sums[q][r] = hn::MulAdd(even[q], a, sums[q][r]);
      for (int q = 0; q < kQueries; ++q) sums[q][r] = hn::MulAdd(odd[q], b, sums[q][r]);
    }
  }
  for (; i + lanes() <= d; i += lanes())
    for (int r = 0; r < kRows; ++r) {
      const auto a = load(rows[r] + i);
      for (int q = 0; q < kQueries; ++q)
        sums[q][r] = hn::MulAdd(load(queries + q * d + i), a, sums[q][r]);
    }
  float four[kQueries][kRows];
  for (int q = 0; q < kQueries; ++q) hn::StoreU(lane_sums(sums[q]), FourSums(), four[q]);
  for (; i < d; ++i)
    for (int q = 0; q < kQueries; ++q)
      for (int r = 0; r < kRows; ++r) four[q][r] += queries[q * d + i] * number(rows[r][i]);
  for (int q = 0; q < kQueries; ++q) {
    float* to = scores + q * group.score_stride + j;
    if (n == kRows)
      hn::StoreU(hn::LoadU(FourSums(), four[q]), FourSums(), to);
    else
      for (int64_t r = 0; r < n; ++r) to[r] = four[q][r];
  }
}

template <int kQueries, typename T>
HWY_INLINE void dot_queries(const GroupRows<T>& group, const float* queries, float* scores) {
  const int64_t stretch = stretch_of(group.n);
  for (int64_t first = 0; first < stretch; first += kRows)
    for (int64_t j = first; j < group.n; j += stretch)
      dot_rows<kQueries>(group, queries, scores, j);
}

// Columns [i, i + kVectors * lanes()): their sums stay in registers while all rows pass by.
template <int kQueries, int kVectors, typename T>
HWY_INLINE void mix_columns(const GroupRows<T>& group, const float* weights, float* sums,
                            int64_t i) {
  const int64_t d = group.d;
  Vector sum[kQueries][kVectors];
  for (int q = 0; q < kQueries; ++q)
    for (int v = 0; v < kVectors; ++v) sum[q][v] = load(sums + q * d + i + v * lanes());
  const auto add_row = [&](int64_t j) HWY_ATTR {
    const T* row = group.rows + j * d + i;
    if (i == 0) prefetch_next(group, j, 1);
    Vector w[kQueries];
    for (int q = 0; q < kQueries; ++q) w[q] = hn::Set(kF, weights[q * group.score_stride + j]);
    for (int v = 0; v < kVectors; v += 2) {
      Vector a, b;
      load_two(row + v * lanes(), a, b);
      for (int q = 0; q < kQueries; ++q) {
        sum[q][v] = hn::MulAdd(w[q], a, sum[q][v]);
        sum[q][v + 1] = hn::MulAdd(w[q], b, sum[q][v + 1]);
      }
    }
  };
  const int64_t stretch = stretch_of(group.n);
  for (int64_t first = 0; first < stretch; ++first)
    for (int64_t j = first; j < group.n; j += stretch) add_row(j);
  for (int q = 0; q < kQueries; ++q)
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[q][v], kF, sums + q * d + i + v * lanes());
}

template <int kQueries, typename T>
HWY_INLINE void mix_queries(const GroupRows<T>& group, const float* weights, float* sums) {
  // Eight vectors of NEON are a cache line of bf16. With fewer, rows come in in parts of lines,
  // each of which waits for memory: 1.2 times the time of attention on a Neoverse-N1.
  constexpr int kVectors = HWY_ARCH_ARM_A64 ? (kQueries == 4 ? 4 : 8) : 2;
  int64_t i = 0;
  for (; i + kVectors * lanes() <= group.d; i += kVectors * lanes())
    mix_columns<kQueries, kVectors>(group, weights, sums, i);
  for (; i + 2 * lanes() <= group.d; i += 2 * lanes())
    mix_columns<kQueries, 2>(group, weights, sums, i);
  for (; i < group.d; ++i)
    for (int q = 0; q < kQueries; ++q)
      for (int64_t j = 0; j < group.n; ++j)
        sums[q * group.d + i] +=
            weights[q * group.score_stride + j] * number(group.rows[j * group.d + i]);
}

template <typename T>
HWY_INLINE void dot_of(const GroupRows<T>& group, const float* queries) {
  for (int64_t q = 0; q < group.n_queries; q += kMostQueries) {
    const float* from = queries + q * group.d;
    float* to = group.scores + q * group.score_stride;
    switch (HWY_MIN(group.n_queries - q, kMostQueries)) {
      case 1:
        dot_queries<1>(group, from, to);
        break;
      case 2:
        dot_queries<2>(group, from, to);
        break;
      case 3:
        dot_queries<3>(group, from, to);
        break;
      default:
        dot_queries<4>(group, from, to);
    }
  }
}

template <typename T>
HWY_INLINE void mix_of(const GroupRows<T>& group, float* sums) {
  for (int64_t q = 0; q < group.n_queries; q += 4) {
    const float* from = group.scores + q * group.score_stride;
    float* to = sums + q * group.d;
    switch (group.n_queries - q) {
      case 1:
        mix_queries<1>(group, from, to);
        break;
      case 2:
        mix_queries<2>(group, from, to);
        break;
      case 3:
        mix_queries<3>(group, from, to);
        break;
      default:
        mix_queries<4>(group, from, to);
    }
  }
}

void dot_f32(const GroupRows<float>& group, const float* queries) { dot_of(group, queries); }
void dot_bf16(const GroupRows<BFloat16>& group, const float* queries) { dot_of(group, queries); }
void dot_int8(const GroupRows<int8_t>& group, const float* queries) { dot_of(group, queries); }
void mix_f32(const GroupRows<float>& group, float* sums) { mix_of(group, sums); }
void mix_bf16(const GroupRows<BFloat16>& group, float* sums) { mix_of(group, sums); }
void mix_int8(const GroupRows<int8_t>& group, float* sums) { mix_of(group, sums); }

}  // namespace sluice::impl::cpu::primitives::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::impl::cpu::primitives {

HWY_EXPORT(dot_f32);
HWY_EXPORT(dot_bf16);
HWY_EXPORT(dot_int8);
HWY_EXPORT(mix_f32);
HWY_EXPORT(mix_bf16);
HWY_EXPORT(mix_int8);

void dot_group(const GroupRows<float>& group, const float* queries) {
  HWY_DYNAMIC_DISPATCH(dot_f32)(group, queries);
}
void dot_group(const GroupRows<BFloat16>& group, const float* queries) {
  HWY_DYNAMIC_DISPATCH(dot_bf16)(group, queries);
}
void dot_group(const GroupRows<int8_t>& group, const float* queries) {
  HWY_DYNAMIC_DISPATCH(dot_int8)(group, queries);
}
void mix_group(const GroupRows<float>& group, float* sums) {
  HWY_DYNAMIC_DISPATCH(mix_f32)(group, sums);
}
void mix_group(const GroupRows<BFloat16>& group, float* sums) {
  HWY_DYNAMIC_DISPATCH(mix_bf16)(group, sums);
}
void mix_group(const GroupRows<int8_t>& group, float* sums) {
  HWY_DYNAMIC_DISPATCH(mix_int8)(group, sums);
}

const NativeGroup* native_group() {
  const NativeGroup* const of_arm = native_group_arm();
  return of_arm != nullptr ? of_arm : native_group_avx512();
}

}  // namespace sluice::impl::cpu::primitives
#endif
