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
#include <numeric>

HWY_BEFORE_NAMESPACE();
namespace sluice::impl::cpu::gemm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 32 values are whole vectors.
const hn::CappedTag<float, 16> kF;
const hn::RebindToSigned<decltype(kF)> kI32;
const hn::Rebind<int8_t, decltype(kF)> kI8;

// The nearest integers of small products.
HWY_INLINE hn::Vec<decltype(kI32)> nearest(hn::Vec<decltype(kF)> x, hn::Vec<decltype(kF)> factor) {
#if HWY_ARCH_X86
  // Highway's NearestInt has four operations more, for what does not fit. Sums of this size have no
  // fraction, their last bits are the integer's.
  const auto large = hn::Set(kF, 0x1.8p23f);
  return hn::Sub(hn::BitCast(kI32, hn::MulAdd(x, factor, large)), hn::BitCast(kI32, large));
#else
  return hn::NearestInt(hn::Mul(x, factor));
#endif
}

HWY_INLINE float quantise_block(const float* x, int64_t n, int8_t* q) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kF));
  // Magnitudes of floats compare as their bits do, infinities and NaN above all others.
  auto largest = hn::Zero(kI32);
  for (int64_t i = 0; i < n; i += lanes)
    largest = hn::Max(largest, hn::BitCast(kI32, hn::Abs(hn::LoadU(kF, x + i))));
  const auto amax = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(kI32, largest)));
  const bool finite = amax <= std::numeric_limits<float>::max();
  if (!finite || amax < kSmallestActivation) {
    std::fill(q, q + n, int8_t{0});
    return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  const auto inverse = hn::Set(kF, 127.0f / amax);
  for (int64_t i = 0; i < n; i += lanes)
    hn::StoreU(hn::DemoteTo(kI8, nearest(hn::LoadU(kF, x + i), inverse)), kI8, q + i);
  return amax / 127.0f;
}

float quantise(const float* x, int64_t n, int8_t* q) { return quantise_block(x, n, q); }

// The sums of 16 and 16 values.
HWY_INLINE void sum_halves(const int8_t* q, int32_t* sums) {
#if HWY_TARGET == HWY_SCALAR  // whose SumsOf8 has one number to sum
  for (int64_t i = 0; i < 2; ++i) sums[i] = std::accumulate(q + 16 * i, q + 16 * i + 16, 0);
#else
  const hn::CappedTag<uint8_t, 32> u8;
  uint64_t of_8[4];  // with 128 added to each value
  for (int64_t i = 0; i < 32; i += static_cast<int64_t>(hn::Lanes(u8))) {
    const auto values = hn::LoadU(u8, reinterpret_cast<const uint8_t*>(q + i));
    const auto sums_of_8 = hn::SumsOf8(hn::Xor(values, hn::Set(u8, 0x80)));
    hn::StoreU(sums_of_8, hn::Repartition<uint64_t, decltype(u8)>(), of_8 + i / 8);
  }
  for (int64_t i = 0; i < 2; ++i)
    sums[i] = static_cast<int32_t>(of_8[2 * i] + of_8[2 * i + 1]) - 16 * 128;
#endif
}

float quantise_each(const float* x, int64_t n_blocks, int8_t* q, float* scales, int32_t* sums) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kF));
  auto even = hn::Zero(kF), odd = hn::Zero(kF);
  for (int64_t b = 0; b < n_blocks; ++b) {
    const float* block = x + b * 32;
    scales[b] = quantise_block(block, 32, q + b * 32);
    if (sums != nullptr) sum_halves(q + b * 32, sums + b * 2);
    for (int64_t i = 0; i < 32; i += 2 * lanes) {
      const auto first = hn::LoadU(kF, block + i), second = hn::LoadU(kF, block + i + lanes);
      even = hn::MulAdd(first, first, even);
      odd = hn::MulAdd(second, second, odd);
    }
  }
  return hn::GetLane(hn::SumOfLanes(kF, hn::Add(even, odd)));
}

}  // namespace sluice::impl::cpu::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::impl::cpu::gemm {

HWY_EXPORT(quantise);
HWY_EXPORT(quantise_each);

float quantise_activations(const float* x, int64_t n, int8_t* q) {
  return HWY_DYNAMIC_DISPATCH(quantise)(x, n, q);
}

float quantise_row(const float* x, int64_t n_blocks, int8_t* q, float* scales, int32_t* sums) {
  return HWY_DYNAMIC_DISPATCH(quantise_each)(x, n_blocks, q, scales, sums);
}

}  // namespace sluice::impl::cpu::gemm
#endif
