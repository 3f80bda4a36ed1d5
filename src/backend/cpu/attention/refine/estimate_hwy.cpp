// The kernel of estimate.h in portable SIMD, for every instruction set Highway compiles here.

#include "backend/cpu/attention/refine/estimate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention/refine/estimate_hwy.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // first: it includes this file once per target
#include <hwy/highway.h>
#include "backend/cpu/primitives/exponential-inl.h"
// clang-format on

#include <algorithm>
#include <cmath>

#include "core/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::impl::cpu::refine::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using primitives::HWY_NAMESPACE::exponential;
using primitives::HWY_NAMESPACE::kF;
using primitives::HWY_NAMESPACE::Vector;

// Calls step(i, n) for vectors of n lanes; the last one may be part of a vector.
template <typename Step>
HWY_INLINE void for_vectors(int64_t n, const Step& step) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kF));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) step(i, lanes);
  if (i < n) step(i, n - i);
}

// n numbers, then `rest` up to a whole vector.
HWY_INLINE Vector load(const float* from, int64_t n, float rest = 0) {
  if (n == static_cast<int64_t>(hn::Lanes(kF))) return hn::LoadU(kF, from);
  HWY_ALIGN float part[hn::MaxLanes(kF)];
  hn::Store(hn::Set(kF, rest), kF, part);
  std::copy(from, from + n, part);
  return hn::Load(kF, part);
}

HWY_INLINE void store(Vector x, int64_t n, float* to) {
  if (n == static_cast<int64_t>(hn::Lanes(kF))) return hn::StoreU(x, kF, to);
  HWY_ALIGN float part[hn::MaxLanes(kF)];
  hn::Store(x, kF, part);
  std::copy(part, part + n, to);
}

void ask(const AskArgs& args) {
  if (args.estimate.log_n() == 0) return;  // a cluster of one token is its mean
  const auto factor = hn::Set(kF, args.scale), half = hn::Set(kF, 0.5f), one = hn::Set(kF, 1.0f);
  const auto log_n = hn::Set(kF, args.estimate.log_n());
  const auto linear_from = hn::Set(kF, args.estimate.linear_from());
  auto top = hn::Set(kF, args.near);
  for_vectors(args.n, [&](int64_t i, int64_t n) HWY_ATTR {
    auto variance = hn::Zero(kF);
    for (size_t g = 0; g < kSpreadGroups; ++g)
      variance = hn::MulAdd(hn::Set(kF, (*args.squares)[g]), load((*args.spreads)[g].data() + i, n),
                            variance);
    const auto sigma = hn::Sqrt(variance);
    const auto excess = hn::IfThenElse(hn::Lt(sigma, linear_from), hn::Mul(half, variance),
                                       hn::MulSub(linear_from, sigma, log_n));
    const auto score = hn::MulAdd(load(args.scores + i, n), factor, log_n);
    store(hn::Add(score, excess), n, args.masses + i);
    store(hn::MulAdd(hn::Min(sigma, one), load(args.rhos + i, n), hn::Min(excess, one)), n,
          args.errors + i);
    top = hn::Max(top, load(args.masses + i, n, args.near));
  });
  const float maximum = hn::GetLane(hn::MaxOfLanes(kF, top));
  const auto shift = hn::Set(kF, maximum);
  auto sum = hn::Zero(kF);
  for_vectors(args.n, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto e = exponential(hn::Sub(load(args.masses + i, n, -INFINITY), shift));
    sum = hn::Add(sum, e);
    store(e, n, args.masses + i);
  });
  const float total = hn::GetLane(hn::SumOfLanes(kF, sum)) + std::exp(args.near - maximum);
  const auto inverse = hn::Set(kF, 1 / total), delta = hn::Set(kF, args.delta);
  for_vectors(args.n, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto estimate =
        hn::Mul(hn::Mul(load(args.masses + i, n), inverse), load(args.errors + i, n));
    float* asks = args.asks + i;
    store(hn::IfThenElse(hn::Ge(estimate, delta), one, load(asks, n)), n, asks);
  });
}

}  // namespace sluice::impl::cpu::refine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::impl::cpu::refine {

HWY_EXPORT(ask);

void ask(const AskArgs& args) { HWY_DYNAMIC_DISPATCH(ask)(args); }

Squares group_squares(const float* query, const DimGroups& dims, float scale) {
  Squares squares{};
  for (int g = 0; g < kSpreadGroups; ++g) {
    float sum = 0;
    dims.each(g, [&](int32_t d) { sum += query[d] * query[d]; });
    squares[static_cast<size_t>(g)] = to_float(to_bfloat16(scale * scale * sum));
  }
  return squares;
}

}  // namespace sluice::impl::cpu::refine
#endif
