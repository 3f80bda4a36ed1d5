// The kernels of selection/gram/simd.h in portable SIMD, for every instruction set Highway compiles
// here.

#include "backend/cpu/selection/gram/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/selection/gram/simd_hwy.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // first: it includes this file once per target
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace sluice::impl::cpu::selection::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

const hn::ScalableTag<float> kF;
using Vector = hn::Vec<decltype(kF)>;

// The largest of n values; value_at gives lanes of them, or one.
template <typename ValueAt>
HWY_INLINE float largest_of(int64_t n, const ValueAt& value_at) {
  const auto n_lanes = static_cast<int64_t>(hn::Lanes(kF));
  const hn::CappedTag<float, 1> one;
  Vector top = hn::Set(kF, -INFINITY), other = top;
  int64_t j = 0;
  for (; j + 2 * n_lanes <= n; j += 2 * n_lanes) {
    top = hn::Max(top, value_at(kF, j));
    other = hn::Max(other, value_at(kF, j + n_lanes));
  }
  for (; j + n_lanes <= n; j += n_lanes) top = hn::Max(top, value_at(kF, j));
  float largest = hn::GetLane(hn::MaxOfLanes(kF, hn::Max(top, other)));
  for (; j < n; ++j) largest = std::max(largest, hn::GetLane(value_at(one, j)));
  return largest;
}

template <typename ValueAt>
HWY_INLINE uint32_t panels_above(int64_t n, const PanelsAbove& above, const ValueAt& value_at) {
  const auto n_lanes = static_cast<int64_t>(hn::Lanes(kF));
  const hn::CappedTag<float, 1> one;
  const Vector limit = hn::Set(kF, above.limit);
  uint32_t found = 0, bit = 1;
  for (int64_t first = 0; first < n; first += above.width, bit <<= 1) {
    const int64_t end = first + above.width;
    Vector top = hn::Set(kF, -INFINITY);
    int64_t j = first;
    for (; j + n_lanes <= end; j += n_lanes) top = hn::Max(top, value_at(kF, j));
    bool any = !hn::AllFalse(kF, hn::Gt(top, limit));
    for (; j < end; ++j) any |= hn::GetLane(value_at(one, j)) > above.limit;
    found |= any ? bit : 0;
  }
  return found;
}

// What is compared, by tag and column: products times factors, or coordinates' products and a rest.
template <bool kAbsolute>
HWY_INLINE auto values_of(const MaximumArgs& args) {
  return [&args](auto tag, int64_t j) HWY_ATTR {
    const auto value = hn::Mul(hn::LoadU(tag, args.c + j), hn::LoadU(tag, args.factors + j));
    return hn::Add(kAbsolute ? hn::Abs(value) : value, hn::LoadU(tag, args.mask + j));
  };
}
template <bool kAbsolute>
HWY_INLINE auto values_of(const BoundArgs& args) {
  return [&args](auto tag, int64_t j) HWY_ATTR {
    const auto c = hn::LoadU(tag, args.c + j);
    const auto rest = hn::MulAdd(hn::Set(tag, args.residual), hn::LoadU(tag, args.residuals + j),
                                 hn::LoadU(tag, args.mask + j));
    return hn::Add(kAbsolute ? hn::Abs(c) : c, rest);
  };
}

float masked_maximum(const MaximumArgs& args) {
  return args.absolute ? largest_of(args.n, values_of<true>(args))
                       : largest_of(args.n, values_of<false>(args));
}
float masked_bound(const BoundArgs& args) {
  return args.absolute ? largest_of(args.n, values_of<true>(args))
                       : largest_of(args.n, values_of<false>(args));
}
uint32_t masked_panels(const MaximumArgs& args, const PanelsAbove& above) {
  return args.absolute ? panels_above(args.n, above, values_of<true>(args))
                       : panels_above(args.n, above, values_of<false>(args));
}
uint32_t bound_panels(const BoundArgs& args, const PanelsAbove& above) {
  return args.absolute ? panels_above(args.n, above, values_of<true>(args))
                       : panels_above(args.n, above, values_of<false>(args));
}

// Two rows to a vector of float64, element by element. Where vectors have one lane, scalar code
// does all of it. Products of float32 are exact in float64, so a fused addition is the same.
#if HWY_TARGET != HWY_SCALAR
const hn::FixedTag<float, 4> kF4;
const hn::FixedTag<double, 2> kD2;
using FourFloats = hn::Vec<decltype(kF4)>;
using TwoDoubles = hn::Vec<decltype(kD2)>;

HWY_INLINE FourFloats load_four(const float* p) { return hn::LoadU(kF4, p); }
HWY_INLINE FourFloats load_four(const BFloat16* p) {
  const hn::Rebind<hwy::bfloat16_t, decltype(kF4)> narrow;
  return hn::PromoteTo(kF4, hn::LoadU(narrow, reinterpret_cast<const hwy::bfloat16_t*>(p)));
}

// Element k < 4 of both rows goes to out[k].
template <typename T>
HWY_INLINE void load_pairs(const T* a, const T* b, TwoDoubles* out) {
  const hn::Half<decltype(kF4)> half;
  const FourFloats x = load_four(a), y = load_four(b);
  const FourFloats low = hn::InterleaveLower(kF4, x, y), high = hn::InterleaveUpper(kF4, x, y);
  out[0] = hn::PromoteTo(kD2, hn::LowerHalf(half, low));
  out[1] = hn::PromoteTo(kD2, hn::UpperHalf(half, low));
  out[2] = hn::PromoteTo(kD2, hn::LowerHalf(half, high));
  out[3] = hn::PromoteTo(kD2, hn::UpperHalf(half, high));
}
#endif

template <typename T>
HWY_INLINE void sums_of_squares_of(const T* const* rows, int64_t n, double* sums) {
  std::fill(sums, sums + kSquareRows, 0.0);
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr int kPairs = kSquareRows / 2;
  TwoDoubles sum[kPairs];
  for (auto& pair : sum) pair = hn::Zero(kD2);
  for (; i + 4 <= n; i += 4)
    for (int r = 0; r < kPairs; ++r) {
      TwoDoubles x[4];
      load_pairs(rows[2 * r] + i, rows[2 * r + 1] + i, x);
      for (const auto& both : x) sum[r] = hn::MulAdd(both, both, sum[r]);
    }
  for (int r = 0; r < kPairs; ++r) hn::StoreU(sum[r], kD2, sums + 2 * r);
#endif
  for (; i < n; ++i)
    for (int64_t r = 0; r < kSquareRows; ++r) {
      const double x = to_float(rows[r][i]);
      sums[r] += x * x;
    }
}

void unit_dots(const float* unit, const float* const* rows, const double* inverses, int64_t n,
               double* dots) {
  std::fill(dots, dots + kDotRows, 0.0);
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr int kPairs = kDotRows / 2;
  const hn::Rebind<float, decltype(kD2)> two_floats;
  TwoDoubles sum[kPairs], inverse[kPairs];
  for (int r = 0; r < kPairs; ++r) {
    sum[r] = hn::Zero(kD2);
    inverse[r] = hn::LoadU(kD2, inverses + 2 * r);
  }
  for (; i + 4 <= n; i += 4)
    for (int r = 0; r < kPairs; ++r) {
      TwoDoubles x[4];
      load_pairs(rows[2 * r] + i, rows[2 * r + 1] + i, x);
      for (int k = 0; k < 4; ++k) {
        const auto element = hn::DemoteTo(two_floats, hn::Mul(x[k], inverse[r]));
        const auto other = hn::Set(kD2, double{unit[i + k]});
        sum[r] = hn::MulAdd(hn::PromoteTo(kD2, element), other, sum[r]);
      }
    }
  for (int r = 0; r < kPairs; ++r) hn::StoreU(sum[r], kD2, dots + 2 * r);
#endif
  for (; i < n; ++i)
    for (int64_t r = 0; r < kDotRows; ++r) {
      const auto element = static_cast<float>(double{rows[r][i]} * inverses[r]);
      dots[r] += double{element} * double{unit[i]};
    }
}

void sums_of_squares_f32(const float* const* rows, int64_t n, double* sums) {
  sums_of_squares_of(rows, n, sums);
}
void sums_of_squares_bf16(const BFloat16* const* rows, int64_t n, double* sums) {
  sums_of_squares_of(rows, n, sums);
}

float squared_distance(const float* x, const BFloat16* rounded, int64_t n) {
  const hn::Rebind<hwy::bfloat16_t, decltype(kF)> narrow;
  const auto n_lanes = static_cast<int64_t>(hn::Lanes(kF));
  Vector sum = hn::Zero(kF);
  int64_t i = 0;
  for (; i + n_lanes <= n; i += n_lanes) {
    const auto y = hn::LoadU(narrow, reinterpret_cast<const hwy::bfloat16_t*>(rounded + i));
    const Vector difference = hn::Sub(hn::LoadU(kF, x + i), hn::PromoteTo(kF, y));
    sum = hn::MulAdd(difference, difference, sum);
  }
  float total = hn::GetLane(hn::SumOfLanes(kF, sum));
  for (; i < n; ++i) {
    const float difference = x[i] - to_float(rounded[i]);
    total += difference * difference;
  }
  return total;
}

}  // namespace sluice::impl::cpu::selection::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::impl::cpu::selection {

HWY_EXPORT(masked_maximum);
HWY_EXPORT(masked_bound);
HWY_EXPORT(masked_panels);
HWY_EXPORT(bound_panels);
HWY_EXPORT(sums_of_squares_f32);
HWY_EXPORT(sums_of_squares_bf16);
HWY_EXPORT(unit_dots);
HWY_EXPORT(squared_distance);

float masked_maximum(const MaximumArgs& args) { return HWY_DYNAMIC_DISPATCH(masked_maximum)(args); }
float masked_bound(const BoundArgs& args) { return HWY_DYNAMIC_DISPATCH(masked_bound)(args); }
uint32_t masked_panels(const MaximumArgs& args, const PanelsAbove& above) {
  return HWY_DYNAMIC_DISPATCH(masked_panels)(args, above);
}
uint32_t bound_panels(const BoundArgs& args, const PanelsAbove& above) {
  return HWY_DYNAMIC_DISPATCH(bound_panels)(args, above);
}
void sums_of_squares(const float* const* rows, int64_t n, double* sums) {
  HWY_DYNAMIC_DISPATCH(sums_of_squares_f32)(rows, n, sums);
}
void sums_of_squares(const BFloat16* const* rows, int64_t n, double* sums) {
  HWY_DYNAMIC_DISPATCH(sums_of_squares_bf16)(rows, n, sums);
}
void unit_dots(const float* unit, const float* const* rows, const double* inverses, int64_t n,
               double* dots) {
  HWY_DYNAMIC_DISPATCH(unit_dots)(unit, rows, inverses, n, dots);
}
float squared_distance(const float* x, const BFloat16* rounded, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(squared_distance)(x, rounded, n);
}

}  // namespace sluice::impl::cpu::selection
#endif
