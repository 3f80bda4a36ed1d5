// The kernels of gemm/columns_simd.h in portable SIMD, for every instruction set Highway compiles
// here.

#include "backend/cpu/gemm/columns_simd.h"
#include "backend/cpu/gemm/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/gemm/columns_hwy.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // first: it includes this file once per target
#include <hwy/highway.h>
// clang-format on

// Without it GCC keeps the accumulators in memory.
#undef KERNEL_UNROLL
#define KERNEL_UNROLL _Pragma("GCC unroll 16")

HWY_BEFORE_NAMESPACE();
namespace sluice::impl::cpu::gemm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

const hn::ScalableTag<float> kF;
using Vector = hn::Vec<decltype(kF)>;
constexpr int64_t kLanes = hn::MaxLanes(kF);

// A cache line as vectors of f32, in the order of its elements.
template <typename T>
constexpr int kParts = static_cast<int>(kLineElements<T> / kLanes);

HWY_INLINE void load_line(const float* p, Vector* parts) {
  KERNEL_UNROLL for (int i = 0; i < kParts<float>; ++i) parts[i] = hn::LoadU(kF, p + i * kLanes);
}
HWY_INLINE void load_line(const BFloat16* p, Vector* parts) {
  constexpr int kHalf = kParts<BFloat16> / 2;
  const hn::RebindToUnsigned<decltype(kF)> d32;
  const auto upper = hn::Set(d32, 0xffff0000u);
  KERNEL_UNROLL for (int i = 0; i < kHalf; ++i) {
    const auto both = hn::LoadU(d32, reinterpret_cast<const uint32_t*>(p) + i * kLanes);
    parts[i] = hn::BitCast(kF, hn::ShiftLeft<16>(both));
    parts[kHalf + i] = hn::BitCast(kF, hn::And(both, upper));
  }
}

template <int kCount, typename T>
HWY_INLINE void mix(const VectorsArgs<T>& args, const T* weights, float* sums) {
  Vector weight[kCount];
  KERNEL_UNROLL for (int j = 0; j < kCount; ++j) weight[j] = hn::Set(kF, to_float(weights[j]));
  for (int64_t i = 0; i < args.n; i += kLineElements<T>) {
    Vector sum[kParts<T>], line[kParts<T>];
    KERNEL_UNROLL for (int part = 0; part < kParts<T>; ++part) sum[part] =
        hn::LoadU(kF, sums + i + part * kLanes);
    KERNEL_UNROLL for (int j = 0; j < kCount; ++j) {
      load_line(args.vectors[j] + i, line);
      KERNEL_UNROLL for (int part = 0; part < kParts<T>; ++part) sum[part] =
          hn::MulAdd(weight[j], line[part], sum[part]);
    }
    KERNEL_UNROLL for (int part = 0; part < kParts<T>; ++part)
        hn::StoreU(sum[part], kF, sums + i + part * kLanes);
  }
}

const hn::ScalableTag<double> kD;
using Doubles = hn::Vec<decltype(kD)>;
constexpr int64_t kDoubleLanes = hn::MaxLanes(kD);

// total += the numbers of v, each in float64.
HWY_INLINE Doubles add_promoted(Vector v, Doubles total) {
  const hn::Rebind<float, decltype(kD)> half;
  HWY_ALIGN float numbers[kLanes];
  hn::Store(v, kF, numbers);
  for (int64_t i = 0; i < kLanes; i += kDoubleLanes)
    total = hn::Add(total, hn::PromoteTo(kD, hn::Load(half, numbers + i)));
  return total;
}

template <int kCount, typename T>
HWY_INLINE void dot(const VectorsArgs<T>& args, const T* x, double* dots) {
  constexpr int64_t kBlock = kDotLines * kLineElements<T>;
  Doubles total[kCount];
  KERNEL_UNROLL for (int j = 0; j < kCount; ++j) total[j] = hn::Zero(kD);
  for (int64_t first = 0; first < args.n; first += kBlock) {
    const int64_t end = HWY_MIN(first + kBlock, args.n);
    Vector sum[kCount];
    KERNEL_UNROLL for (int j = 0; j < kCount; ++j) sum[j] = hn::Zero(kF);
    for (int64_t i = first; i < end; i += kLineElements<T>) {
      Vector factor[kParts<T>], line[kParts<T>];
      load_line(x + i, factor);
      KERNEL_UNROLL for (int j = 0; j < kCount; ++j) {
        load_line(args.vectors[j] + i, line);
        KERNEL_UNROLL for (int part = 0; part < kParts<T>; ++part) sum[j] =
            hn::MulAdd(factor[part], line[part], sum[j]);
      }
    }
    KERNEL_UNROLL for (int j = 0; j < kCount; ++j) total[j] = add_promoted(sum[j], total[j]);
  }
  KERNEL_UNROLL for (int j = 0; j < kCount; ++j) dots[j] =
      hn::GetLane(hn::SumOfLanes(kD, total[j]));
}

// One function per number of vectors.
template <typename T, int kCount = kMaxVectors>
HWY_INLINE void mix_any(const VectorsArgs<T>& args, const T* weights, float* sums) {
  if (args.count == kCount) return mix<kCount>(args, weights, sums);
  if constexpr (kCount > 1) mix_any<T, kCount - 1>(args, weights, sums);
}
template <typename T, int kCount = kMaxVectors>
HWY_INLINE void dot_any(const VectorsArgs<T>& args, const T* x, double* dots) {
  if (args.count == kCount) return dot<kCount>(args, x, dots);
  if constexpr (kCount > 1) dot_any<T, kCount - 1>(args, x, dots);
}

void mix_f32(const VectorsArgs<float>& args, const float* weights, float* sums) {
  mix_any(args, weights, sums);
}
void mix_bf16(const VectorsArgs<BFloat16>& args, const BFloat16* weights, float* sums) {
  mix_any(args, weights, sums);
}
void dot_f32(const VectorsArgs<float>& args, const float* x, double* dots) {
  dot_any(args, x, dots);
}
void dot_bf16(const VectorsArgs<BFloat16>& args, const BFloat16* x, double* dots) {
  dot_any(args, x, dots);
}

// Four chains of additions: one alone waits for each sum before it takes the next.
HWY_INLINE void add_squares(const Vector* line, Doubles* chains) {
  const hn::Rebind<float, decltype(kD)> half;
  HWY_ALIGN float numbers[kLineElements<float>];
  KERNEL_UNROLL for (int k = 0; k < kParts<float>; ++k)
      hn::Store(line[k], kF, numbers + k * kLanes);
  KERNEL_UNROLL for (int64_t k = 0; k < kLineElements<float> / kDoubleLanes; ++k) {
    const auto a = hn::PromoteTo(kD, hn::Load(half, numbers + k * kDoubleLanes));
    chains[k % 4] = hn::MulAdd(a, a, chains[k % 4]);
  }
}
HWY_INLINE double sum_of(const Doubles* chains) {
  return hn::GetLane(
      hn::SumOfLanes(kD, hn::Add(hn::Add(chains[0], chains[1]), hn::Add(chains[2], chains[3]))));
}

double squared_norm(const float* x, int64_t n) {
  Doubles chains[4] = {hn::Zero(kD), hn::Zero(kD), hn::Zero(kD), hn::Zero(kD)};
  Vector line[kParts<float>];
  for (int64_t i = 0; i < n; i += kLineElements<float>) {
    load_line(x + i, line);
    add_squares(line, chains);
  }
  return sum_of(chains);
}

double squared_distance(const float* x, const float* parts, int64_t stride, int64_t count,
                        int64_t n) {
  Doubles chains[4] = {hn::Zero(kD), hn::Zero(kD), hn::Zero(kD), hn::Zero(kD)};
  for (int64_t i = 0; i < n; i += kLineElements<float>) {
    Vector left[kParts<float>], part[kParts<float>];
    load_line(parts + i, left);
    for (int64_t p = 1; p < count; ++p) {
      load_line(parts + p * stride + i, part);
      KERNEL_UNROLL for (int k = 0; k < kParts<float>; ++k) left[k] = hn::Add(left[k], part[k]);
    }
    load_line(x + i, part);
    KERNEL_UNROLL for (int k = 0; k < kParts<float>; ++k) left[k] = hn::Sub(part[k], left[k]);
    add_squares(left, chains);
  }
  return sum_of(chains);
}

}  // namespace sluice::impl::cpu::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::impl::cpu::gemm {

HWY_EXPORT(mix_f32);
HWY_EXPORT(mix_bf16);
HWY_EXPORT(dot_f32);
HWY_EXPORT(dot_bf16);
HWY_EXPORT(squared_norm);
HWY_EXPORT(squared_distance);

void mix_vectors(const VectorsArgs<float>& args, const float* weights, float* sums) {
  HWY_DYNAMIC_DISPATCH(mix_f32)(args, weights, sums);
}
void mix_vectors(const VectorsArgs<BFloat16>& args, const BFloat16* weights, float* sums) {
  static const MixFunction native = kernel_bfmmla() != nullptr ? native_mix() : nullptr;
  if (native != nullptr)
    native(args, weights, sums);
  else
    HWY_DYNAMIC_DISPATCH(mix_bf16)(args, weights, sums);
}
void dot_vectors(const VectorsArgs<float>& args, const float* x, double* dots) {
  HWY_DYNAMIC_DISPATCH(dot_f32)(args, x, dots);
}
void dot_vectors(const VectorsArgs<BFloat16>& args, const BFloat16* x, double* dots) {
  static const DotFunction native = kernel_bfmmla() != nullptr ? native_dot() : nullptr;
  if (native != nullptr)
    native(args, x, dots);
  else
    HWY_DYNAMIC_DISPATCH(dot_bf16)(args, x, dots);
}
double squared_norm(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(squared_norm)(x, n); }
double squared_distance(const float* x, const float* parts, int64_t stride, int64_t count,
                        int64_t n) {
  return HWY_DYNAMIC_DISPATCH(squared_distance)(x, parts, stride, count, n);
}

}  // namespace sluice::impl::cpu::gemm
#endif
