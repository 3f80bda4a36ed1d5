// gemm/blocks/expand_tile.h in portable SIMD, vectors of 16 bytes: two rows of a chunk.

#include "backend/cpu/gemm/blocks/expand_tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/gemm/blocks/expand_tile_hwy.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // first: it includes this file once per target
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::impl::cpu::gemm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

const hn::FixedTag<uint8_t, 16> kU8;
const hn::FixedTag<int8_t, 16> kI8;
const hn::FixedTag<int8_t, 8> kHalfI8;
const hn::FixedTag<int16_t, 8> kI16;
const hn::FixedTag<int16_t, 4> kHalfI16;
const hn::FixedTag<int32_t, 4> kI32;
const hn::FixedTag<float, 4> kF4;
using Bytes = hn::Vec<decltype(kU8)>;
using Words = hn::Vec<decltype(kI16)>;

// Moves bits from kFrom on to bit 4. Bytes have no shifts of their own: what 16-bit ones carry over
// from the next byte is masked.
template <int kFrom, int kMask>
HWY_INLINE Bytes move_bits(Bytes x) {
  const hn::FixedTag<uint16_t, 8> words;
  auto moved = hn::BitCast(words, x);
  if constexpr (kFrom < 4) moved = hn::ShiftLeft<4 - kFrom>(moved);
  if constexpr (kFrom > 4) moved = hn::ShiftRight<kFrom - 4>(moved);
  return hn::And(hn::BitCast(kU8, moved), hn::Set(kU8, kMask));
}

// Vector V of chunk J: rows 2V and 2V + 1.
template <int kBits, int V, int J>
HWY_INLINE Bytes read(const uint8_t* sub) {
  constexpr int kAt = V * 16;
  if constexpr (kBits == 8) {
    return hn::LoadU(kU8, sub + J * 64 + kAt);
  } else {
    constexpr int kHigh = kBits == 5 ? 32 : kBits == 6 ? 64 : 0;
    const auto both = hn::LoadU(kU8, sub + kHigh + J % 2 * 64 + kAt);
    const hn::FixedTag<uint16_t, 8> words;
    const auto placed =
        J < 2 ? both : hn::BitCast(kU8, hn::ShiftRight<4>(hn::BitCast(words, both)));
    const auto low = hn::And(placed, hn::Set(kU8, 0xf));
    if constexpr (kBits == 5)
      return hn::Or(low, move_bits<kAt / 32 * 4 + J, 0x10>(hn::LoadU(kU8, sub + kAt % 32)));
    else if constexpr (kBits == 6)
      return hn::Or(low, move_bits<2 * J, 0x30>(hn::LoadU(kU8, sub + kAt)));
    else
      return low;
  }
}

HWY_INLINE void put_row(Words q, float scale, float minimum, float* out) {
  const auto s = hn::Set(kF4, scale), m = hn::Set(kF4, minimum);
  const auto low = hn::ConvertTo(kF4, hn::PromoteTo(kI32, hn::LowerHalf(kHalfI16, q)));
  const auto high = hn::ConvertTo(kF4, hn::PromoteTo(kI32, hn::UpperHalf(kHalfI16, q)));
  hn::StoreU(hn::MulAdd(low, s, m), kF4, out);
  hn::StoreU(hn::MulAdd(high, s, m), kF4, out + 4);
}

template <int kBits, int kOffset, int V, int J>
HWY_INLINE void expand_vector(const ExpandTileArgs& args) {
  const auto q = hn::Add(hn::BitCast(kI8, read<kBits, V, J>(args.sub)), hn::Set(kI8, kOffset));
  const int at = (args.halves && J >= 2 ? 8 : 0) + 2 * V;
  float* out = args.out + J * 64 + V * 16;
  put_row(hn::PromoteTo(kI16, hn::LowerHalf(kHalfI8, q)), args.scale[at], args.minimum[at], out);
  put_row(hn::PromoteTo(kI16, hn::UpperHalf(kHalfI8, q)), args.scale[at + 1], args.minimum[at + 1],
          out + 8);
}

template <int kBits, int kOffset, int J>
HWY_INLINE void expand_chunk(const ExpandTileArgs& args) {
  expand_vector<kBits, kOffset, 0, J>(args);
  expand_vector<kBits, kOffset, 1, J>(args);
  expand_vector<kBits, kOffset, 2, J>(args);
  expand_vector<kBits, kOffset, 3, J>(args);
}

template <int kBits, int kOffset>
HWY_NOINLINE void expand_type(const ExpandTileArgs& args) {
  expand_chunk<kBits, kOffset, 0>(args);
  expand_chunk<kBits, kOffset, 1>(args);
  expand_chunk<kBits, kOffset, 2>(args);
  expand_chunk<kBits, kOffset, 3>(args);
}

void expand(int bits, int offset, const ExpandTileArgs& args) {
  switch (bits) {
    case 8:
      return expand_type<8, 0>(args);
    case 6:
      return expand_type<6, -32>(args);
    case 5:
      return offset == 0 ? expand_type<5, 0>(args) : expand_type<5, -16>(args);
    default:
      return offset == 0 ? expand_type<4, 0>(args) : expand_type<4, -8>(args);
  }
}

}  // namespace sluice::impl::cpu::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::impl::cpu::gemm {

HWY_EXPORT(expand);

void expand_tile(int bits, int offset, const ExpandTileArgs& args) {
  HWY_DYNAMIC_DISPATCH(expand)(bits, offset, args);
}

}  // namespace sluice::impl::cpu::gemm
#endif
