// Rounding of activations (gemm/blocks/activations.h) in portable SIMD.

#include "backend/cpu/gemm/blocks/activations.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/gemm/blocks/activations_hwy.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // first: it includes this file once per target
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <bit>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace sluice::impl::cpu::gemm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

float quantise(const float* x, int64_t n, int8_t* q) {
  // At most 8 lanes, so that 32 values are whole vectors.
  const hn::CappedTag<float, 8> f;
  const hn::RebindToSigned<decltype(f)> i32;
  const hn::Rebind<int8_t, decltype(f)> i8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(f));
  // Magnitudes of floats compare as their bits do, infinities and NaN above all others.
  auto largest = hn::Zero(i32);
  for (int64_t i = 0; i < n; i += lanes)
    largest = hn::Max(largest, hn::BitCast(i32, hn::Abs(hn::LoadU(f, x + i))));
  const auto amax = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(i32, largest)));
  const bool finite = amax <= std::numeric_limits<float>::max();
  if (!finite || amax < kSmallestActivation) {
    std::fill(q, q + n, int8_t{0});
    return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  const auto inverse = hn::Set(f, 127.0f / amax);
  for (int64_t i = 0; i < n; i += lanes)
    hn::StoreU(hn::DemoteTo(i8, hn::NearestInt(hn::Mul(hn::LoadU(f, x + i), inverse))), i8, q + i);
  return amax / 127.0f;
}

}  // namespace sluice::impl::cpu::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::impl::cpu::gemm {

HWY_EXPORT(quantise);

float quantise_activations(const float* x, int64_t n, int8_t* q) {
  return HWY_DYNAMIC_DISPATCH(quantise)(x, n, q);
}

}  // namespace sluice::impl::cpu::gemm
#endif
