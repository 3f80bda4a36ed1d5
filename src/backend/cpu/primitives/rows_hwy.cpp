// The kernels of primitives/rows.h in portable SIMD, for every instruction set Highway compiles
// here.

#include "backend/cpu/primitives/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/primitives/rows_hwy.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // first: it includes this file once per target
#include <hwy/highway.h>
#include "backend/cpu/primitives/exponential-inl.h"
#include "backend/cpu/primitives/narrow.h"
// clang-format on

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace sluice::impl::cpu::primitives::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

const hn::Rebind<hwy::bfloat16_t, decltype(kF)> kB;

HWY_INLINE int64_t lanes() { return static_cast<int64_t>(hn::Lanes(kF)); }

// The vector at p, or the first `left` numbers of it and zeros. Tails pass through a buffer: where
// the CPU has no masked access (NEON, SSE4), Highway's masked load reads, and its blended store
// rewrites, the whole vector, beyond the row's end and into a row that another thread owns.
HWY_INLINE Vector load(const float* p, int64_t left) {
  if (left >= lanes()) return hn::LoadU(kF, p);
  HWY_ALIGN float tail[hn::MaxLanes(kF)] = {};
  for (int64_t i = 0; i < left; ++i) tail[i] = p[i];
  return hn::Load(kF, tail);
}
HWY_INLINE void store(Vector v, float* p, int64_t left) {
  if (left >= lanes()) return hn::StoreU(v, kF, p);
  HWY_ALIGN float tail[hn::MaxLanes(kF)];
  hn::Store(v, kF, tail);
  for (int64_t i = 0; i < left; ++i) p[i] = tail[i];
}
// Calls step(offset, left) for each vector of a row; left is a constant in all but the last.
template <typename Step>
HWY_INLINE void for_vectors(int64_t n, Step&& step) {
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) step(i, lanes());
  if (i < n) step(i, n - i);
}

HWY_INLINE Vector load_bf16(const BFloat16* p) {
  return hn::PromoteTo(kF, hn::LoadU(kB, reinterpret_cast<const hwy::bfloat16_t*>(p)));
}

// 1 / x for x >= 1: an estimate of 8 bits or more, doubled twice by Newton's step. Division is the
// one slow instruction of an activation.
HWY_INLINE Vector reciprocal(Vector x) {
  const auto two = hn::Set(kF, 2.0f);
  const auto y = hn::ApproximateReciprocal(x);
  const auto better = hn::Mul(y, hn::NegMulAdd(x, y, two));
  return hn::Mul(better, hn::NegMulAdd(x, better, two));
}

HWY_INLINE Vector sigmoid(Vector x) {
  const auto one = hn::Set(kF, 1.0f);
  return reciprocal(hn::Add(one, exponential(hn::Neg(x))));
}

// erf by Abramowitz and Stegun 7.1.26: absolute error below 1.5e-7.
HWY_INLINE Vector erf(Vector x) {
  const auto one = hn::Set(kF, 1.0f);
  const auto magnitude = hn::Abs(x);
  const auto t = reciprocal(hn::MulAdd(hn::Set(kF, 0.3275911f), magnitude, one));
  auto series = hn::Set(kF, 1.061405429f);
  series = hn::MulAdd(series, t, hn::Set(kF, -1.453152027f));
  series = hn::MulAdd(series, t, hn::Set(kF, 1.421413741f));
  series = hn::MulAdd(series, t, hn::Set(kF, -0.284496736f));
  series = hn::MulAdd(series, t, hn::Set(kF, 0.254829592f));
  const auto tail = hn::Mul(hn::Mul(series, t), exponential(hn::Neg(hn::Mul(x, x))));
  return hn::CopySignToAbs(hn::Sub(one, tail), x);
}

HWY_INLINE Vector activate(Activation activation, Vector x) {
  switch (activation) {
    case Activation::kRelu:
      return hn::Max(x, hn::Zero(kF));
    case Activation::kSilu:
      return hn::Mul(x, sigmoid(x));
    case Activation::kGeluTanh: {  // (1 + tanh(u)) / 2 = sigmoid(2u)
      const auto cube = hn::Mul(hn::Mul(x, x), x);
      const auto twice_u =
          hn::Mul(hn::MulAdd(cube, hn::Set(kF, 0.044715f), x), hn::Set(kF, 1.5957691216057308f));
      return hn::Mul(x, sigmoid(twice_u));
    }
    case Activation::kGeluErf: {
      const auto half = hn::Set(kF, 0.5f);
      const auto e = erf(hn::Mul(x, hn::Set(kF, 0.70710678118654752f)));
      return hn::Mul(x, hn::MulAdd(e, half, half));
    }
    case Activation::kNone:
      break;
  }
  return x;
}

void widen(const BFloat16* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) hn::StoreU(load_bf16(from + i), kF, to + i);
  for (; i < n; ++i) to[i] = to_float(from[i]);
}

void narrow(const float* from, int64_t n, BFloat16* to) {
  // Round to nearest, ties to even, in integer arithmetic; the same bits as to_bfloat16.
  const hn::RebindToUnsigned<decltype(kF)> d32;
  const hn::Rebind<uint16_t, decltype(kF)> d16;
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    const auto value = hn::LoadU(kF, from + i);
    const auto bits = hn::BitCast(d32, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fffu))));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(d32, 0x40u));
    const auto is_nan = hn::RebindMask(d32, hn::IsNaN(value));
    hn::StoreU(hn::TruncateTo(d16, hn::IfThenElse(is_nan, quiet, rounded)), d16,
               reinterpret_cast<uint16_t*>(to + i));
  }
  for (; i < n; ++i) to[i] = to_bfloat16(from[i]);
}

// The switch stands outside the loop so that each activation is a tight loop of its own.
template <Activation kActivation>
void bias_activate_as(const float* bias, int64_t n, float* x) {
  if (bias == nullptr) {
    for_vectors(n, [&](int64_t i, int64_t left)
                       HWY_ATTR { store(activate(kActivation, load(x + i, left)), x + i, left); });
  } else {
    for_vectors(n, [&](int64_t i, int64_t left) HWY_ATTR {
      const auto v = hn::Add(load(x + i, left), load(bias + i, left));
      store(activate(kActivation, v), x + i, left);
    });
  }
}

template <Activation kActivation>
void gate_row_as(const float* gate, const float* up, int64_t n, float* out) {
  for_vectors(n, [&](int64_t i, int64_t left) HWY_ATTR {
    store(hn::Mul(activate(kActivation, load(gate + i, left)), load(up + i, left)), out + i, left);
  });
}

void bias_activate(const float* bias, Activation activation, int64_t n, float* x) {
  switch (activation) {
    case Activation::kNone:
      return bias_activate_as<Activation::kNone>(bias, n, x);
    case Activation::kRelu:
      return bias_activate_as<Activation::kRelu>(bias, n, x);
    case Activation::kGeluErf:
      return bias_activate_as<Activation::kGeluErf>(bias, n, x);
    case Activation::kGeluTanh:
      return bias_activate_as<Activation::kGeluTanh>(bias, n, x);
    case Activation::kSilu:
      return bias_activate_as<Activation::kSilu>(bias, n, x);
  }
}

void gate_row(Activation activation, const float* gate, const float* up, int64_t n, float* out) {
  switch (activation) {
    case Activation::kNone:
      return gate_row_as<Activation::kNone>(gate, up, n, out);
    case Activation::kRelu:
      return gate_row_as<Activation::kRelu>(gate, up, n, out);
    case Activation::kGeluErf:
      return gate_row_as<Activation::kGeluErf>(gate, up, n, out);
    case Activation::kGeluTanh:
      return gate_row_as<Activation::kGeluTanh>(gate, up, n, out);
    case Activation::kSilu:
      return gate_row_as<Activation::kSilu>(gate, up, n, out);
  }
}

void add(const float* from, int64_t n, float* to) {
  for_vectors(n, [&](int64_t i, int64_t left) HWY_ATTR {
    store(hn::Add(load(from + i, left), load(to + i, left)), to + i, left);
  });
}

void add_multiple(float factor, const float* from, int64_t n, float* to) {
  const auto multiple = hn::Set(kF, factor);
  for_vectors(n, [&](int64_t i, int64_t left) HWY_ATTR {
    store(hn::MulAdd(multiple, load(from + i, left), load(to + i, left)), to + i, left);
  });
}

void scale(float factor, int64_t n, float* x) {
  for_vectors(n, [&](int64_t i, int64_t left) HWY_ATTR {
    store(hn::Mul(load(x + i, left), hn::Set(kF, factor)), x + i, left);
  });
}

// The series up to x^13 for |x| < 0.45, where it errs by less than 2e-8 of the value; beyond,
// 1 - 2 / (exp(2 |x|) + 1), which cancels too much near 0.
HWY_INLINE Vector hyperbolic_tangent(Vector x) {
  const auto size = hn::Abs(x), square = hn::Mul(x, x);
  auto series = hn::Set(kF, 21844.0f / 6081075);
  for (const float term : {-1382.0f / 155925, 62.0f / 2835, -17.0f / 315, 2.0f / 15, -1.0f / 3})
    series = hn::MulAdd(series, square, hn::Set(kF, term));
  series = hn::MulAdd(hn::Mul(series, square), x, x);
  const auto one = hn::Set(kF, 1.0f), two = hn::Set(kF, 2.0f);
  const auto far = hn::Sub(one, hn::Div(two, hn::Add(exponential(hn::Mul(size, two)), one)));
  return hn::IfThenElse(hn::Lt(size, hn::Set(kF, 0.45f)), series, hn::CopySign(far, x));
}

void soft_cap(float cap, int64_t n, float* x) {
  const auto limit = hn::Set(kF, cap), inverse = hn::Set(kF, 1 / cap);
  for_vectors(n, [&](int64_t i, int64_t left) HWY_ATTR {
    store(hn::Mul(hyperbolic_tangent(hn::Mul(load(x + i, left), inverse)), limit), x + i, left);
  });
}

void norm_row(const NormRowArgs& args) {
  const int64_t n = args.n;
  const auto count = static_cast<float>(n);
  float mean = 0;
  if (args.kind == NormKind::kLayer) {
    auto sum = hn::Zero(kF);
    for_vectors(
        n, [&](int64_t i, int64_t left) HWY_ATTR { sum = hn::Add(sum, load(args.x + i, left)); });
    mean = hn::GetLane(hn::SumOfLanes(kF, sum)) / count;
  }
  const auto shift = hn::Set(kF, mean);
  auto squares = hn::Zero(kF);
  for_vectors(n, [&](int64_t i, int64_t left) HWY_ATTR {
    auto v = hn::Sub(load(args.x + i, left), shift);
    if (left < lanes()) v = hn::IfThenElseZero(hn::FirstN(kF, static_cast<size_t>(left)), v);
    squares = hn::MulAdd(v, v, squares);
  });
  const float variance = hn::GetLane(hn::SumOfLanes(kF, squares)) / count;
  const auto inverse = hn::Set(kF, 1.0f / std::sqrt(variance + args.epsilon));
  for_vectors(n, [&](int64_t i, int64_t left) HWY_ATTR {
    auto v = hn::Mul(hn::Sub(load(args.x + i, left), shift), inverse);
    if (args.weight != nullptr) v = hn::Mul(v, load(args.weight + i, left));
    if (args.bias != nullptr) v = hn::Add(v, load(args.bias + i, left));
    store(v, args.out + i, left);
  });
}

void rotate_head(RotaryStyle style, const float* cosine, const float* sine, int64_t half,
                 float* x) {
  int64_t i = 0;
  if (style == RotaryStyle::kHalves) {
    for (; i + lanes() <= half; i += lanes()) {
      const auto c = hn::LoadU(kF, cosine + i), s = hn::LoadU(kF, sine + i);
      const auto a = hn::LoadU(kF, x + i), b = hn::LoadU(kF, x + half + i);
      hn::StoreU(hn::MulSub(a, c, hn::Mul(b, s)), kF, x + i);
      hn::StoreU(hn::MulAdd(b, c, hn::Mul(a, s)), kF, x + half + i);
    }
  } else {
    for (; i + lanes() <= half; i += lanes()) {
      const auto c = hn::LoadU(kF, cosine + i), s = hn::LoadU(kF, sine + i);
      Vector a, b;
      hn::LoadInterleaved2(kF, x + 2 * i, a, b);
      hn::StoreInterleaved2(hn::MulSub(a, c, hn::Mul(b, s)), hn::MulAdd(b, c, hn::Mul(a, s)), kF,
                            x + 2 * i);
    }
  }
  for (; i < half; ++i) {
    float& first = style == RotaryStyle::kHalves ? x[i] : x[2 * i];
    float& second = style == RotaryStyle::kHalves ? x[half + i] : x[2 * i + 1];
    const float a = first, b = second;
    first = a * cosine[i] - b * sine[i];
    second = b * cosine[i] + a * sine[i];
  }
}

const char* simd_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace sluice::impl::cpu::primitives::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::impl::cpu::primitives {

HWY_EXPORT(widen);
HWY_EXPORT(narrow);
HWY_EXPORT(bias_activate);
HWY_EXPORT(gate_row);
HWY_EXPORT(add);
HWY_EXPORT(add_multiple);
HWY_EXPORT(scale);
HWY_EXPORT(soft_cap);
HWY_EXPORT(norm_row);
HWY_EXPORT(rotate_head);
HWY_EXPORT(simd_name);

void widen(const BFloat16* from, int64_t n, float* to) { HWY_DYNAMIC_DISPATCH(widen)(from, n, to); }
void narrow(const float* from, int64_t n, BFloat16* to) {
  static const NarrowFunction native = narrow_bfcvt() != nullptr ? narrow_bfcvt() : narrow_avx512();
  if (native != nullptr)
    native(from, n, to);
  else
    HWY_DYNAMIC_DISPATCH(narrow)(from, n, to);
}
void bias_activate(const float* bias, Activation activation, int64_t n, float* x) {
  HWY_DYNAMIC_DISPATCH(bias_activate)(bias, activation, n, x);
}
void gate_row(Activation activation, const float* gate, const float* up, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(gate_row)(activation, gate, up, n, out);
}
void add(const float* from, int64_t n, float* to) { HWY_DYNAMIC_DISPATCH(add)(from, n, to); }
void add_multiple(float factor, const float* from, int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(add_multiple)(factor, from, n, to);
}
void scale(float factor, int64_t n, float* x) { HWY_DYNAMIC_DISPATCH(scale)(factor, n, x); }
void soft_cap(float cap, int64_t n, float* x) { HWY_DYNAMIC_DISPATCH(soft_cap)(cap, n, x); }
void norm_row(const NormRowArgs& args) { HWY_DYNAMIC_DISPATCH(norm_row)(args); }
void rotate_head(RotaryStyle style, const float* cosine, const float* sine, int64_t half,
                 float* x) {
  HWY_DYNAMIC_DISPATCH(rotate_head)(style, cosine, sine, half, x);
}
const char* simd_name() { return HWY_DYNAMIC_DISPATCH(simd_name)(); }

}  // namespace sluice::impl::cpu::primitives
#endif
