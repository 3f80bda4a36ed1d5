#include "io/gguf_blocks.h"

#include <bit>
#include <cstring>

#include "core/error.h"

namespace sluice::impl {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little endian");

template <typename T>
T load(const std::byte* source) {
  T value;
  std::memcpy(&value, source, sizeof(T));
  return value;
}

// half_to_float without branches, so that loops over it become vector code. Every value that the
// arithmetic sees is a normal float32: a thread that flushes subnormals gets the same result.
inline float half_bits_to_float(uint16_t half) {
  const uint32_t sign = (uint32_t{half} & 0x8000u) << 16;
  const uint32_t magnitude = (uint32_t{half} & 0x7fffu) << 13;
  constexpr uint32_t kRebias = 112u << 23;    // 127 - 15
  constexpr uint32_t kSmallest = 113u << 23;  // 2^-14, the smallest normal half
  // Infinity and NaN are rebiased twice: exponent 31 -> 255.
  const uint32_t normal = magnitude + kRebias + (magnitude >= (0x1fu << 23) ? kRebias : 0u);
  const float subnormal =
      std::bit_cast<float>(magnitude + kSmallest) - std::bit_cast<float>(kSmallest);
  // A mask, since compilers make a conditional a branch around the subtraction.
  const uint32_t is_subnormal = 0u - static_cast<uint32_t>(magnitude < (1u << 23));
  const uint32_t bits =
      (std::bit_cast<uint32_t>(subnormal) & is_subnormal) | (normal & ~is_subnormal);
  return std::bit_cast<float>(bits | sign);
}

inline float load_half(const std::byte* source) {
  return half_bits_to_float(load<uint16_t>(source));
}

inline int low_nibble(std::byte byte) { return std::to_integer<int>(byte) & 0xf; }
inline int high_nibble(std::byte byte) { return std::to_integer<int>(byte) >> 4; }

constexpr int kSmallBlock = 32;
constexpr int kLargeBlock = 256;

void expand_q8_0(const std::byte* block, float* out) {
  const float d = load_half(block);
  const std::byte* q = block + 2;
  for (int i = 0; i < kSmallBlock; ++i)
    out[i] = d * static_cast<float>(static_cast<int8_t>(std::to_integer<uint8_t>(q[i])));
}

// Byte i of the nibbles holds weights i (low) and i + 16 (high).
void expand_q4_0(const std::byte* block, float* out) {
  const float d = load_half(block);
  const std::byte* q = block + 2;
  for (int i = 0; i < kSmallBlock / 2; ++i) {
    out[i] = d * static_cast<float>(low_nibble(q[i]) - 8);
    out[i + 16] = d * static_cast<float>(high_nibble(q[i]) - 8);
  }
}

void expand_q4_1(const std::byte* block, float* out) {
  const float d = load_half(block);
  const float m = load_half(block + 2);
  const std::byte* q = block + 4;
  for (int i = 0; i < kSmallBlock / 2; ++i) {
    out[i] = d * static_cast<float>(low_nibble(q[i])) + m;
    out[i + 16] = d * static_cast<float>(high_nibble(q[i])) + m;
  }
}

// Bit i of the high bits belongs to weight i.
inline int fifth_bit(uint32_t high_bits, int weight) {
  return static_cast<int>((high_bits >> weight) & 1u) << 4;
}

void expand_q5_0(const std::byte* block, float* out) {
  const float d = load_half(block);
  const auto high_bits = load<uint32_t>(block + 2);
  const std::byte* q = block + 6;
  for (int i = 0; i < kSmallBlock / 2; ++i) {
    out[i] = d * static_cast<float>((low_nibble(q[i]) | fifth_bit(high_bits, i)) - 16);
    out[i + 16] = d * static_cast<float>((high_nibble(q[i]) | fifth_bit(high_bits, i + 16)) - 16);
  }
}

void expand_q5_1(const std::byte* block, float* out) {
  const float d = load_half(block);
  const float m = load_half(block + 2);
  const auto high_bits = load<uint32_t>(block + 4);
  const std::byte* q = block + 8;
  for (int i = 0; i < kSmallBlock / 2; ++i) {
    out[i] = d * static_cast<float>(low_nibble(q[i]) | fifth_bit(high_bits, i)) + m;
    out[i + 16] = d * static_cast<float>(high_nibble(q[i]) | fifth_bit(high_bits, i + 16)) + m;
  }
}

struct ScaleAndMin {
  int scale;
  int min;
};

// Twelve bytes hold eight scales and eight minima of 6 bits. Sub-blocks 0-3 have theirs in the low
// 6 bits of bytes 0-3 and 4-7. Sub-blocks 4-7 have their low 4 bits in the nibbles of bytes 8-11
// and their high 2 bits in the tops of bytes 0-3 (scale) and 4-7 (min).
inline ScaleAndMin unpack_scale(const std::byte* packed, int sub_block) {
  const auto at = [packed](int i) { return std::to_integer<int>(packed[i]); };
  if (sub_block < 4) return {at(sub_block) & 0x3f, at(sub_block + 4) & 0x3f};
  return {(at(sub_block + 4) & 0xf) | ((at(sub_block - 4) >> 6) << 4),
          (at(sub_block + 4) >> 4) | ((at(sub_block) >> 6) << 4)};
}

// Sub-block 2g lies in the low nibbles of 32 bytes, sub-block 2g + 1 in their high nibbles.
void expand_q4_k(const std::byte* block, float* out) {
  const float d = load_half(block);
  const float e = load_half(block + 2);
  const std::byte* packed = block + 4;
  const std::byte* q = block + 16;
  for (int pair = 0; pair < 4; ++pair, q += 32, out += 64) {
    const ScaleAndMin low = unpack_scale(packed, 2 * pair);
    const ScaleAndMin high = unpack_scale(packed, 2 * pair + 1);
    const float low_d = d * static_cast<float>(low.scale);
    const float low_m = e * static_cast<float>(low.min);
    const float high_d = d * static_cast<float>(high.scale);
    const float high_m = e * static_cast<float>(high.min);
    for (int i = 0; i < 32; ++i) out[i] = low_d * static_cast<float>(low_nibble(q[i])) - low_m;
    for (int i = 0; i < 32; ++i)
      out[i + 32] = high_d * static_cast<float>(high_nibble(q[i])) - high_m;
  }
}

// As q4_k; bit s of high byte i is the fifth bit of weight i of sub-block s.
void expand_q5_k(const std::byte* block, float* out) {
  const float d = load_half(block);
  const float e = load_half(block + 2);
  const std::byte* packed = block + 4;
  const std::byte* high_bits = block + 16;
  const std::byte* q = block + 48;
  for (int pair = 0; pair < 4; ++pair, q += 32, out += 64) {
    const ScaleAndMin low = unpack_scale(packed, 2 * pair);
    const ScaleAndMin high = unpack_scale(packed, 2 * pair + 1);
    const float low_d = d * static_cast<float>(low.scale);
    const float low_m = e * static_cast<float>(low.min);
    const float high_d = d * static_cast<float>(high.scale);
    const float high_m = e * static_cast<float>(high.min);
    for (int i = 0; i < 32; ++i) {
      const int bits = std::to_integer<int>(high_bits[i]) >> (2 * pair);
      out[i] = low_d * static_cast<float>(low_nibble(q[i]) | ((bits & 1) << 4)) - low_m;
      out[i + 32] = high_d * static_cast<float>(high_nibble(q[i]) | ((bits & 2) << 3)) - high_m;
    }
  }
}

// Halves of 128 weights: 64 bytes of nibbles, 32 bytes of bit pairs, 8 scales of 16 weights each.
// Quarter k (32 weights) of a half has its bit pairs at position 2k, and its nibbles in the first
// (even k) or second (odd k) 32 bytes: low nibbles for k < 2, high ones after.
void expand_q6_k(const std::byte* block, float* out) {
  const std::byte* nibbles = block;
  const std::byte* pairs = block + 128;
  const std::byte* scales = block + 192;
  const float d = load_half(block + 208);
  for (int half = 0; half < 2; ++half, nibbles += 64, pairs += 32, scales += 8) {
    for (int quarter = 0; quarter < 4; ++quarter, out += 32) {
      const std::byte* q = nibbles + 32 * (quarter % 2);
      const int nibble_shift = quarter < 2 ? 0 : 4;
      for (int part = 0; part < 2; ++part) {
        const auto scale = std::to_integer<uint8_t>(scales[2 * quarter + part]);
        const float ds = d * static_cast<float>(static_cast<int8_t>(scale));
        for (int i = 16 * part; i < 16 * part + 16; ++i) {
          const int low = (std::to_integer<int>(q[i]) >> nibble_shift) & 0xf;
          const int high = (std::to_integer<int>(pairs[i]) >> (2 * quarter)) & 0x3;
          out[i] = ds * static_cast<float>((low | (high << 4)) - 32);
        }
      }
    }
  }
}

template <void (*kExpandOne)(const std::byte*, float*), DType kType, int kElements>
void expand_each(const std::byte* source, int64_t n_blocks, float* out) {
  const int64_t block_bytes = block_size(kType).bytes;
  for (int64_t block = 0; block < n_blocks; ++block)
    kExpandOne(source + block * block_bytes, out + block * kElements);
}

}  // namespace

void expand_blocks(DType dtype, const std::byte* source, int64_t n_blocks, float* out) {
  switch (dtype) {
    case DType::kQ8_0:
      return expand_each<expand_q8_0, DType::kQ8_0, kSmallBlock>(source, n_blocks, out);
    case DType::kQ4_0:
      return expand_each<expand_q4_0, DType::kQ4_0, kSmallBlock>(source, n_blocks, out);
    case DType::kQ4_1:
      return expand_each<expand_q4_1, DType::kQ4_1, kSmallBlock>(source, n_blocks, out);
    case DType::kQ5_0:
      return expand_each<expand_q5_0, DType::kQ5_0, kSmallBlock>(source, n_blocks, out);
    case DType::kQ5_1:
      return expand_each<expand_q5_1, DType::kQ5_1, kSmallBlock>(source, n_blocks, out);
    case DType::kQ4_K:
      return expand_each<expand_q4_k, DType::kQ4_K, kLargeBlock>(source, n_blocks, out);
    case DType::kQ5_K:
      return expand_each<expand_q5_k, DType::kQ5_K, kLargeBlock>(source, n_blocks, out);
    case DType::kQ6_K:
      return expand_each<expand_q6_k, DType::kQ6_K, kLargeBlock>(source, n_blocks, out);
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kI32:
    case DType::kI8:
      break;
  }
  SLUICE_CHECK(block_size(dtype).elements > 1);  // only block types come here
}

void expand_f16(const std::byte* source, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = load_half(source + 2 * i);
}

void expand_bf16(const std::byte* source, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i)
    out[i] = std::bit_cast<float>(uint32_t{load<uint16_t>(source + 2 * i)} << 16);
}

}  // namespace sluice::impl
