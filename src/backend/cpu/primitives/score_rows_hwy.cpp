// The kernels of primitives/score_rows.h in portable SIMD, for every instruction set Highway
// compiles here.

#include "backend/cpu/primitives/score_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/primitives/score_rows_hwy.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // first: it includes this file once per target
#include <hwy/highway.h>
#include "backend/cpu/primitives/exponential-inl.h"
// clang-format on

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace sluice::impl::cpu::primitives::HWY_NAMESPACE {

HWY_INLINE int64_t lanes() { return static_cast<int64_t>(hn::Lanes(kF)); }

template <bool kCounts>
HWY_INLINE float softmax_step_of(float scale, const float* counts, int64_t n, float* x,
                                 SoftmaxState& state) {
  const auto factor = hn::Set(kF, scale);
  // Four chains: one alone waits for each maximum before it takes the next.
  auto top = hn::Set(kF, -INFINITY), second = top, third = top, fourth = top;
  int64_t i = 0;
  for (; i + 4 * lanes() <= n; i += 4 * lanes()) {
    top = hn::Max(top, hn::LoadU(kF, x + i));
    second = hn::Max(second, hn::LoadU(kF, x + i + lanes()));
    third = hn::Max(third, hn::LoadU(kF, x + i + 2 * lanes()));
    fourth = hn::Max(fourth, hn::LoadU(kF, x + i + 3 * lanes()));
  }
  for (; i + lanes() <= n; i += lanes()) top = hn::Max(top, hn::LoadU(kF, x + i));
  top = hn::Max(hn::Max(top, second), hn::Max(third, fourth));
  float largest = hn::GetLane(hn::MaxOfLanes(kF, top));
  for (; i < n; ++i) largest = std::fmax(largest, x[i]);
  const float maximum = std::fmax(state.maximum, largest * scale);
  if (maximum == -INFINITY) {
    for (i = 0; i < n; ++i) x[i] = 0;
    return 1.0f;
  }
  const float correction = state.maximum == maximum ? 1.0f : std::exp(state.maximum - maximum);
  const auto shift = hn::Set(kF, maximum);
  auto sum = hn::Zero(kF);
  const auto step = [&](int64_t at) HWY_ATTR {
    auto e = exponential_below_one(hn::MulSub(hn::LoadU(kF, x + at), factor, shift));
    if constexpr (kCounts) e = hn::Mul(e, hn::LoadU(kF, counts + at));
    hn::StoreU(e, kF, x + at);
    return e;
  };
  // One sum: whether zeros lie between two weights does not change it. Two exponentials at a time.
  for (i = 0; i + 2 * lanes() <= n; i += 2 * lanes()) {
    const auto one = step(i), next = step(i + lanes());
    sum = hn::Add(hn::Add(sum, one), next);
  }
  for (; i + lanes() <= n; i += lanes()) sum = hn::Add(sum, step(i));
  float total = hn::GetLane(hn::SumOfLanes(kF, sum));
  for (; i < n; ++i) {
    x[i] = std::exp(x[i] * scale - maximum);
    if constexpr (kCounts) x[i] *= counts[i];
    total += x[i];
  }
  state = {maximum, state.total * correction + total};
  return correction;
}

float softmax_step(float scale, int64_t n, float* x, SoftmaxState& state, const float* counts) {
  return counts == nullptr ? softmax_step_of<false>(scale, nullptr, n, x, state)
                           : softmax_step_of<true>(scale, counts, n, x, state);
}

float log_sum_exp(const float* x, int64_t n) {
  auto top = hn::Set(kF, -INFINITY);
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) top = hn::Max(top, hn::LoadU(kF, x + i));
  float maximum = hn::GetLane(hn::MaxOfLanes(kF, top));
  for (; i < n; ++i) maximum = std::fmax(maximum, x[i]);
  // Partial sums of 256 vectors keep float32 round-off from growing with the vocabulary.
  double total = 0;
  for (i = 0; i + lanes() <= n;) {
    auto sum = hn::Zero(kF);
    for (int step = 0; step < 256 && i + lanes() <= n; ++step, i += lanes())
      sum = hn::Add(sum, exponential(hn::Sub(hn::LoadU(kF, x + i), hn::Set(kF, maximum))));
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(kF, sum)));
  }
  for (; i < n; ++i) total += std::exp(double{x[i]} - maximum);
  return maximum + static_cast<float>(std::log(total));
}

HWY_INLINE Vector load_any(const float* p) { return hn::LoadU(kF, p); }
HWY_INLINE Vector load_any(const BFloat16* p) {
  return hn::PromoteTo(kF, hn::LoadU(hn::Rebind<hwy::bfloat16_t, decltype(kF)>(),
                                     reinterpret_cast<const hwy::bfloat16_t*>(p)));
}

template <typename T>
HWY_INLINE void dot_rows_of(const float* q, const T* keys, int64_t stride, int64_t n, int64_t d,
                            float* out) {
  for (int64_t j = 0; j < n; ++j, keys += stride) {
    auto a = hn::Zero(kF), b = hn::Zero(kF);
    int64_t i = 0;
    for (; i + 2 * lanes() <= d; i += 2 * lanes()) {
      a = hn::MulAdd(hn::LoadU(kF, q + i), load_any(keys + i), a);
      b = hn::MulAdd(hn::LoadU(kF, q + i + lanes()), load_any(keys + i + lanes()), b);
    }
    for (; i + lanes() <= d; i += lanes())
      a = hn::MulAdd(hn::LoadU(kF, q + i), load_any(keys + i), a);
    float sum = hn::GetLane(hn::SumOfLanes(kF, hn::Add(a, b)));
    for (; i < d; ++i) sum += q[i] * to_float(keys[i]);
    out[j] = sum;
  }
}

template <typename T>
HWY_INLINE void mix_rows_of(const float* weights, const T* values, int64_t stride, int64_t n,
                            int64_t d, float* out) {
  // Four vectors of the output stay in registers while all rows pass by.
  int64_t i = 0;
  for (; i + 4 * lanes() <= d; i += 4 * lanes()) {
    auto a = hn::LoadU(kF, out + i), b = hn::LoadU(kF, out + i + lanes());
    auto c = hn::LoadU(kF, out + i + 2 * lanes()), e = hn::LoadU(kF, out + i + 3 * lanes());
    const T* row = values + i;
    for (int64_t j = 0; j < n; ++j, row += stride) {
      const auto w = hn::Set(kF, weights[j]);
      a = hn::MulAdd(w, load_any(row), a);
      b = hn::MulAdd(w, load_any(row + lanes()), b);
      c = hn::MulAdd(w, load_any(row + 2 * lanes()), c);
      e = hn::MulAdd(w, load_any(row + 3 * lanes()), e);
    }
    hn::StoreU(a, kF, out + i);
    hn::StoreU(b, kF, out + i + lanes());
    hn::StoreU(c, kF, out + i + 2 * lanes());
    hn::StoreU(e, kF, out + i + 3 * lanes());
  }
  for (; i + lanes() <= d; i += lanes()) {
    auto a = hn::LoadU(kF, out + i);
    for (int64_t j = 0; j < n; ++j)
      a = hn::MulAdd(hn::Set(kF, weights[j]), load_any(values + j * stride + i), a);
    hn::StoreU(a, kF, out + i);
  }
  for (; i < d; ++i)
    for (int64_t j = 0; j < n; ++j) out[i] += weights[j] * to_float(values[j * stride + i]);
}

void dot_rows_f32(const float* q, const float* k, int64_t stride, int64_t n, int64_t d, float* o) {
  dot_rows_of(q, k, stride, n, d, o);
}
void dot_rows_bf16(const float* q, const BFloat16* k, int64_t stride, int64_t n, int64_t d,
                   float* o) {
  dot_rows_of(q, k, stride, n, d, o);
}
void mix_rows_f32(const float* w, const float* v, int64_t stride, int64_t n, int64_t d, float* o) {
  mix_rows_of(w, v, stride, n, d, o);
}
void mix_rows_bf16(const float* w, const BFloat16* v, int64_t stride, int64_t n, int64_t d,
                   float* o) {
  mix_rows_of(w, v, stride, n, d, o);
}

}  // namespace sluice::impl::cpu::primitives::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::impl::cpu::primitives {

HWY_EXPORT(softmax_step);
HWY_EXPORT(log_sum_exp);
HWY_EXPORT(dot_rows_f32);
HWY_EXPORT(dot_rows_bf16);
HWY_EXPORT(mix_rows_f32);
HWY_EXPORT(mix_rows_bf16);

float softmax_step(float factor, int64_t n, float* x, SoftmaxState& state, const float* counts) {
  return HWY_DYNAMIC_DISPATCH(softmax_step)(factor, n, x, state, counts);
}
float log_sum_exp(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(log_sum_exp)(x, n); }
void dot_rows(const float* q, const float* keys, int64_t stride, int64_t n, int64_t d, float* out) {
  HWY_DYNAMIC_DISPATCH(dot_rows_f32)(q, keys, stride, n, d, out);
}
void dot_rows(const float* q, const BFloat16* keys, int64_t stride, int64_t n, int64_t d,
              float* out) {
  HWY_DYNAMIC_DISPATCH(dot_rows_bf16)(q, keys, stride, n, d, out);
}
void mix_rows(const float* weights, const float* values, int64_t stride, int64_t n, int64_t d,
              float* out) {
  HWY_DYNAMIC_DISPATCH(mix_rows_f32)(weights, values, stride, n, d, out);
}
void mix_rows(const float* weights, const BFloat16* values, int64_t stride, int64_t n, int64_t d,
              float* out) {
  HWY_DYNAMIC_DISPATCH(mix_rows_bf16)(weights, values, stride, n, d, out);
}

}  // namespace sluice::impl::cpu::primitives
#endif
