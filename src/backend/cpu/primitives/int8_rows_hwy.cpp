// The kernels of primitives/int8_rows.h in portable SIMD, for every instruction set Highway
// compiles here.

#include "backend/cache_kind.h"
#include "backend/cpu/primitives/int8_rows.h"
#include "backend/cpu/primitives/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/primitives/int8_rows_hwy.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // first: it includes this file once per target
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::impl::cpu::primitives::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

const hn::ScalableTag<float> kF;
const hn::Rebind<int32_t, decltype(kF)> kI;
const hn::Rebind<int8_t, decltype(kF)> kB;

HWY_INLINE int64_t lanes() { return static_cast<int64_t>(hn::Lanes(kF)); }

float to_int8(const float* from, int64_t n, int8_t* to) {
  auto largest = hn::Zero(kF), wrong = hn::Zero(kF);  // x - x is no number where x is not finite
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    const auto x = hn::LoadU(kF, from + i);
    largest = hn::Max(largest, hn::Abs(x));
    wrong = hn::Add(wrong, hn::Sub(x, x));
  }
  float most = hn::GetLane(hn::MaxOfLanes(kF, largest));
  if (!(hn::GetLane(hn::SumOfLanes(kF, wrong)) == 0)) most = int8_largest(most, INFINITY);
  for (int64_t k = i; k < n; ++k) most = std::isnan(most) ? most : int8_largest(most, from[k]);
  const float scale = int8_scale(most);
  if (!(scale > 0)) {
    std::fill_n(to, n, int8_t{0});
    return scale;
  }
  const auto most_of_int8 = hn::Set(kF, 127.0f), divisor = hn::Set(kF, scale);
  for (i = 0; i + lanes() <= n; i += lanes()) {
    const auto x = hn::Round(hn::Div(hn::LoadU(kF, from + i), divisor));
    const auto kept = hn::Min(hn::Max(x, hn::Neg(most_of_int8)), most_of_int8);
    hn::StoreU(hn::DemoteTo(kB, hn::ConvertTo(kI, kept)), kB, to + i);
  }
  for (; i < n; ++i) to[i] = impl::to_int8(from[i], scale);
  return scale;
}

void from_int8(const int8_t* from, float scale, int64_t n, float* to) {
  const auto factor = hn::Set(kF, scale);
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes())
    hn::StoreU(hn::Mul(hn::ConvertTo(kF, hn::PromoteTo(kI, hn::LoadU(kB, from + i))), factor), kF,
               to + i);
  for (; i < n; ++i) to[i] = static_cast<float>(from[i]) * scale;
}

}  // namespace sluice::impl::cpu::primitives::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::impl::cpu::primitives {
namespace {

constexpr int64_t kPart = 256;  // numbers of a row that are widened at a time

}  // namespace

HWY_EXPORT(to_int8);
HWY_EXPORT(from_int8);

float to_int8_row(const float* from, int64_t n, int8_t* to) {
  return HWY_DYNAMIC_DISPATCH(to_int8)(from, n, to);
}
float to_int8_row(const BFloat16* from, int64_t n, int8_t* to) {
  thread_local std::vector<float> row;
  row.resize(static_cast<size_t>(n));
  widen(from, n, row.data());
  return to_int8_row(row.data(), n, to);
}
void from_int8_row(const int8_t* from, float scale, int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(from_int8)(from, scale, n, to);
}
void from_int8_row(const int8_t* from, float scale, int64_t n, BFloat16* to) {
  float part[kPart];
  for (int64_t first = 0; first < n; first += kPart) {
    const int64_t count = std::min(kPart, n - first);
    from_int8_row(from + first, scale, count, part);
    narrow(part, count, to + first);
  }
}

}  // namespace sluice::impl::cpu::primitives
#endif
