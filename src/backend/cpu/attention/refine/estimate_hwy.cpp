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

template <RefineRule kRule>
HWY_INLINE void ask_of(const AskArgs& args) {
  constexpr bool kError = kRule != RefineRule::kStrongest;
  const auto factor = hn::Set(kF, args.scale), q_norm = hn::Set(kF, args.q_norm);
  const auto half = hn::Set(kF, 0.5f);
  auto top = hn::Set(kF, args.near);
  for_vectors(args.n, [&](int64_t i, int64_t n) HWY_ATTR {
    auto mass = hn::MulAdd(load(args.scores + i, n), factor, load(args.log_counts + i, n));
    if constexpr (kError) {
      const auto sigma = hn::Mul(q_norm, load(args.deviations + i, n));
      mass = hn::MulAdd(hn::Mul(half, sigma), sigma, mass);
    }
    store(mass, n, args.masses + i);
    top = hn::Max(top, load(args.masses + i, n, args.near));
  });
  const float maximum = hn::GetLane(hn::MaxOfLanes(kF, top));
  const auto shift = hn::Set(kF, maximum);
  auto sum = hn::Zero(kF);
  for_vectors(args.n, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto e = exponential(hn::Sub(load(args.masses + i, n, -INFINITY), shift));
    sum = hn::Add(sum, e);
    if constexpr (kError) store(e, n, args.masses + i);
  });
  const float total = hn::GetLane(hn::SumOfLanes(kF, sum)) + std::exp(args.near - maximum);
  const auto inverse = hn::Set(kF, 1 / total), delta = hn::Set(kF, args.delta);
  const auto log_z = hn::Set(kF, maximum + std::log(total));
  for_vectors(args.n, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto log_count = load(args.log_counts + i, n);
    const auto sigma = hn::Mul(q_norm, load(args.deviations + i, n));
    Vector estimate;
    if constexpr (kError) {
      const auto error = hn::Mul(sigma, hn::MulAdd(half, sigma, load(args.rhos + i, n)));
      estimate = hn::Mul(hn::Mul(load(args.masses + i, n), inverse), error);
    } else {
      const auto reach = hn::Mul(sigma, hn::Sqrt(hn::Add(log_count, log_count)));
      const auto score = hn::MulAdd(load(args.scores + i, n), factor, reach);
      estimate = exponential(hn::Sub(score, log_z));
    }
    float* asks = args.asks + i;
    if constexpr (kRule == RefineRule::kMeanError) {
      store(hn::Add(load(asks, n), hn::IfThenZeroElse(hn::IsNaN(estimate), estimate)), n, asks);
    } else {
      const auto opens = hn::And(hn::Ge(estimate, delta), hn::Gt(log_count, hn::Zero(kF)));
      store(hn::IfThenElse(opens, hn::Set(kF, 1.0f), load(asks, n)), n, asks);
    }
  });
}

void ask(const AskArgs& args) {
  switch (args.rule) {
    case RefineRule::kError:
      return ask_of<RefineRule::kError>(args);
    case RefineRule::kStrongest:
      return ask_of<RefineRule::kStrongest>(args);
    case RefineRule::kMeanError:
      return ask_of<RefineRule::kMeanError>(args);
  }
}

}  // namespace sluice::impl::cpu::refine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::impl::cpu::refine {

HWY_EXPORT(ask);

void ask(const AskArgs& args) { HWY_DYNAMIC_DISPATCH(ask)(args); }

}  // namespace sluice::impl::cpu::refine
#endif
