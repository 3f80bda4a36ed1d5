// Blocks of 32 values with one scale, and one minimum in some types.

#include <algorithm>
#include <array>

#include "io/quantise/blocks.h"

namespace sluice::impl::quantise {
namespace {

constexpr int kBlock = 32;
using Steps = std::array<int, kBlock>;

// The value of largest magnitude, with its sign.
float extreme(const float* x) {
  return *std::max_element(x, x + kBlock,
                           [](float a, float b) { return std::abs(a) < std::abs(b); });
}

// Value i in the low nibble of byte i, value i + 16 in the high one.
void put_nibbles(const Steps& q, std::byte* out) {
  for (size_t i = 0; i < kBlock / 2; ++i)
    out[i] = static_cast<std::byte>((q[i] & 0xf) | (q[i + 16] & 0xf) << 4);
}

void put_fifth_bits(const Steps& q, std::byte* out) {
  uint32_t bits = 0;
  for (size_t i = 0; i < kBlock; ++i) bits |= static_cast<uint32_t>(q[i] >> 4 & 1) << i;
  std::memcpy(out, &bits, sizeof(bits));
}

// The extreme is the lowest of 2 kZero steps, the only one without a counterpart.
template <int kZero>
Steps signed_steps(const float* x, std::byte* block) {
  const Half d(extreme(x) / static_cast<float>(-kZero));
  d.put(block);
  Steps q;
  for (size_t i = 0; i < kBlock; ++i) q[i] = steps(x[i], d.value, -kZero, kZero - 1) + kZero;
  return q;
}

template <int kLargest>
Steps steps_from_minimum(const float* x, std::byte* block) {
  const auto [low, high] = std::minmax_element(x, x + kBlock);
  const Half d((*high - *low) / static_cast<float>(kLargest)), m(*low);
  d.put(block);
  m.put(block + 2);
  Steps q;
  for (size_t i = 0; i < kBlock; ++i) q[i] = steps(x[i] - m.value, d.value, 0, kLargest);
  return q;
}

}  // namespace

void write_q8_0(const float* x, std::byte* block) {
  const Half d(std::abs(extreme(x)) / 127.0f);
  d.put(block);
  for (int i = 0; i < kBlock; ++i)
    block[2 + i] = static_cast<std::byte>(steps(x[i], d.value, -127, 127));
}

void write_q4_0(const float* x, std::byte* block) {
  put_nibbles(signed_steps<8>(x, block), block + 2);
}

void write_q4_1(const float* x, std::byte* block) {
  put_nibbles(steps_from_minimum<15>(x, block), block + 4);
}

void write_q5_0(const float* x, std::byte* block) {
  const Steps q = signed_steps<16>(x, block);
  put_fifth_bits(q, block + 2);
  put_nibbles(q, block + 6);
}

void write_q5_1(const float* x, std::byte* block) {
  const Steps q = steps_from_minimum<31>(x, block);
  put_fifth_bits(q, block + 4);
  put_nibbles(q, block + 8);
}

}  // namespace sluice::impl::quantise
