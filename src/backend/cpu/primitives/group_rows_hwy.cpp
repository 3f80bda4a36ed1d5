// The kernels of primitives/group_rows.h in portable SIMD, for every instruction set Highway
// compiles here.

#include "backend/cpu/primitives/group_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/primitives/group_rows_hwy.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // first: it includes this file once per target
#include <hwy/highway.h>
// clang-format on

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
HWY_INLINE float number(int8_t x) { return static_cast<float>(x); }
template <typename T>
HWY_INLINE float number(T x) {
  return to_float(x);
}

// A row is widened once for all queries.
template <int kQueries, typename T>
HWY_INLINE void dot_queries(const GroupRows<T>& group, const float* queries, float* scores) {
  const int64_t d = group.d;
  for (int64_t j = 0; j < group.n; ++j) {
    const T* row = group.rows + j * d;
    Vector even[kQueries], odd[kQueries];
    for (int q = 0; q < kQueries; ++q) even[q] = odd[q] = hn::Zero(kF);
    int64_t i = 0;
    for (; i + 2 * lanes() <= d; i += 2 * lanes()) {
      const auto a = load(row + i), b = load(row + i + lanes());
      for (int q = 0; q < kQueries; ++q) {
        even[q] = hn::MulAdd(load(queries + q * d + i), a, even[q]);
        odd[q] = hn::MulAdd(load(queries + q * d + i + lanes()), b, odd[q]);
      }
    }
    for (; i + lanes() <= d; i += lanes()) {
      const auto a = load(row + i);
      for (int q = 0; q < kQueries; ++q)
        even[q] = hn::MulAdd(load(queries + q * d + i), a, even[q]);
    }
    for (int q = 0; q < kQueries; ++q) {
      float sum = hn::GetLane(hn::SumOfLanes(kF, hn::Add(even[q], odd[q])));
      for (int64_t k = i; k < d; ++k) sum += queries[q * d + k] * number(row[k]);
      scores[q * group.score_stride + j] = sum;
    }
  }
}

// Two vectors of every sum stay in registers while all rows pass by.
template <int kQueries, typename T>
HWY_INLINE void mix_queries(const GroupRows<T>& group, const float* weights, float* sums) {
  const int64_t d = group.d, stride = group.score_stride;
  int64_t i = 0;
  for (; i + 2 * lanes() <= d; i += 2 * lanes()) {
    Vector even[kQueries], odd[kQueries];
    for (int q = 0; q < kQueries; ++q) {
      even[q] = load(sums + q * d + i);
      odd[q] = load(sums + q * d + i + lanes());
    }
    for (int64_t j = 0; j < group.n; ++j) {
      const T* row = group.rows + j * d + i;
      const auto a = load(row), b = load(row + lanes());
      for (int q = 0; q < kQueries; ++q) {
        const auto w = hn::Set(kF, weights[q * stride + j]);
        even[q] = hn::MulAdd(w, a, even[q]);
        odd[q] = hn::MulAdd(w, b, odd[q]);
      }
    }
    for (int q = 0; q < kQueries; ++q) {
      hn::StoreU(even[q], kF, sums + q * d + i);
      hn::StoreU(odd[q], kF, sums + q * d + i + lanes());
    }
  }
  for (; i < d; ++i)
    for (int q = 0; q < kQueries; ++q)
      for (int64_t j = 0; j < group.n; ++j)
        sums[q * d + i] += weights[q * stride + j] * number(group.rows[j * d + i]);
}

template <typename T>
HWY_INLINE void dot_of(const GroupRows<T>& group, const float* queries) {
  for (int64_t q = 0; q < group.n_queries; q += 4) {
    const float* from = queries + q * group.d;
    float* to = group.scores + q * group.score_stride;
    switch (group.n_queries - q) {
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

}  // namespace sluice::impl::cpu::primitives
#endif
