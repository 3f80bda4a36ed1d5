// The kernels of gram_simd.h in portable SIMD, for every instruction set Highway compiles here.

#include "backend/cpu/gram_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/gram_simd_hwy.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // first: it includes this file once per target
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

const hn::ScalableTag<float> kF;
using Vector = hn::Vec<decltype(kF)>;

template <bool kAbsolute>
HWY_INLINE void panel_maxima_of(const PanelMaximaArgs& args) {
  const auto n_lanes = static_cast<int64_t>(hn::Lanes(kF));
  for (int64_t i = 0; i < args.n_rows; ++i) {
    const float* c = args.c + i * args.c_stride;
    for (int64_t p = 0; p < args.n_panels; ++p) {
      Vector top = hn::Set(kF, -INFINITY);
      int64_t j = p * args.nr;
      const int64_t end = j + args.nr;
      for (; j + n_lanes <= end; j += n_lanes) {
        Vector value = hn::Mul(hn::LoadU(kF, c + j), hn::LoadU(kF, args.factors + j));
        if (kAbsolute) value = hn::Abs(value);
        top = hn::Max(top, hn::Add(value, hn::LoadU(kF, args.mask + j)));
      }
      float largest = hn::GetLane(hn::MaxOfLanes(kF, top));
      for (; j < end; ++j) {
        const float value = c[j] * args.factors[j];
        largest = std::max(largest, (kAbsolute ? std::abs(value) : value) + args.mask[j]);
      }
      args.out[i * args.n_panels + p] = largest;
    }
  }
}

void panel_maxima(const PanelMaximaArgs& args) {
  if (args.absolute)
    panel_maxima_of<true>(args);
  else
    panel_maxima_of<false>(args);
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

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {

HWY_EXPORT(panel_maxima);
HWY_EXPORT(squared_distance);

void panel_maxima(const PanelMaximaArgs& args) { HWY_DYNAMIC_DISPATCH(panel_maxima)(args); }
float squared_distance(const float* x, const BFloat16* rounded, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(squared_distance)(x, rounded, n);
}

}  // namespace sluice::cpu
#endif
