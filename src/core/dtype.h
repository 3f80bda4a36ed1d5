// Element types. Weights may be in blocks; activations are f32 or bf16.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice::impl {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kI32,
  kI8,
  // GGUF block types: see io/gguf_blocks.h.
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

// Elements are stored in blocks; plain types have blocks of one element.
struct BlockSize {
  int64_t elements;
  int64_t bytes;
};

BlockSize block_size(DType dtype);
std::string_view dtype_name(DType dtype);

// Bytes of one element of a plain type.
inline int64_t element_bytes(DType dtype) { return block_size(dtype).bytes; }

// A float32 cut to its upper half. Conversion from float rounds to nearest, ties to even.
struct BFloat16 {
  uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
float half_to_float(uint16_t bits);
// Rounds to nearest, ties to even; beyond the largest half to infinity.
uint16_t float_to_half(float x);

inline BFloat16 to_bfloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u)  // NaN stays NaN
    return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <typename T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline BFloat16 from_float<BFloat16>(float x) {
  return to_bfloat16(x);
}

template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::kF32;
}
template <>
constexpr DType dtype_of<BFloat16>() {
  return DType::kBF16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::kI32;
}
template <>
constexpr DType dtype_of<int8_t>() {
  return DType::kI8;
}

}  // namespace sluice::impl
