// The exponential function on a vector, for files that Highway compiles once per target.

// Per-target include guard, as Highway asks for it.
#if defined(SLUICE_EXPONENTIAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_EXPONENTIAL_INL_H_
#undef SLUICE_EXPONENTIAL_INL_H_
#else
#define SLUICE_EXPONENTIAL_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::impl::cpu::primitives::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

const hn::ScalableTag<float> kF;
using Vector = hn::Vec<decltype(kF)>;

// exp(x) = 2^n * exp(r) with |r| <= ln(2) / 2 and a Taylor series of degree 6 for exp(r), whose
// remainder is below 1.3e-7 of the value. Below -87 (where float32 ends) it is zero, exactly;
// above 88 it stays at exp(88).
//
// bounded: x, at least -87; a NaN may have become a number there, and the result is NaN all the
// same.
HWY_INLINE Vector exponential_of(Vector x, Vector bounded) {
  const hn::RebindToUnsigned<decltype(kF)> bits;
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
  const auto magic = hn::Set(kF, 12582912.0f);
  const auto shifted = hn::MulAdd(bounded, hn::Set(kF, 1.44269504f), magic);
  const auto n = hn::Sub(shifted, magic);
  // ln 2 in two parts, so that the subtraction is exact.
  auto r = hn::NegMulAdd(n, hn::Set(kF, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(kF, -2.12194440e-4f), r);
  // In pairs rather than one power at a time: the chain of dependent steps sets the speed.
  const auto r2 = hn::Mul(r, r);
  const auto low = hn::Add(r, hn::Set(kF, 1.0f));
  const auto middle = hn::MulAdd(r, hn::Set(kF, 1.0f / 6), hn::Set(kF, 0.5f));
  const auto high = hn::MulAdd(r, hn::Set(kF, 1.0f / 120), hn::Set(kF, 1.0f / 24));
  auto series = hn::MulAdd(r2, hn::Set(kF, 1.0f / 720), high);
  series = hn::MulAdd(series, r2, middle);
  series = hn::MulAdd(series, r2, low);
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(bits, shifted));
  const auto power = hn::BitCast(kF, hn::Add(exponent, hn::Set(bits, 127u << 23)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(kF, -87.0f)), hn::Mul(series, power));
}

HWY_INLINE Vector exponential(Vector x) {
  const auto top = hn::Min(x, hn::Set(kF, 88.0f));
  const auto value = exponential_of(top, hn::Max(top, hn::Set(kF, -87.0f)));
  return hn::IfThenElse(hn::IsNaN(x), x, value);
}

// The same for x <= 0 or NaN, as a softmax has it: fewer steps, the same bits.
HWY_INLINE Vector exponential_below_one(Vector x) {
  return exponential_of(x, hn::Max(x, hn::Set(kF, -87.0f)));
}

}  // namespace sluice::impl::cpu::primitives::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
