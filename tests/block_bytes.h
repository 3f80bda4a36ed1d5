// Random blocks of the types of io/gguf_blocks.h, as bytes.

#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "core/dtype.h"

namespace sluice::impl::test {

constexpr DType kBlockTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                                 DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// A half of either sign between 2^-10 and 2^-6.
inline uint16_t random_scale(std::mt19937& random) {
  const auto bits = static_cast<uint32_t>(random());
  return static_cast<uint16_t>((bits & 0x83ffu) | (5 + (bits >> 16) % 4) << 10);
}

// n_rows of n_in weights; any bits but those of d and e, which stay of one size.
inline std::vector<std::byte> random_blocks(DType dtype, int64_t n_rows, int64_t n_in,
                                            uint32_t seed) {
  const BlockSize size = block_size(dtype);
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(n_rows * (n_in / size.elements) * size.bytes));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() >> 8);
  const auto put = [&](int64_t at) {
    const uint16_t half = random_scale(random);
    bytes[static_cast<size_t>(at)] = static_cast<std::byte>(half);
    bytes[static_cast<size_t>(at + 1)] = static_cast<std::byte>(half >> 8);
  };
  const bool two = dtype == DType::kQ4_1 || dtype == DType::kQ5_1 || dtype == DType::kQ4_K ||
                   dtype == DType::kQ5_K;
  for (int64_t block = 0; block < static_cast<int64_t>(bytes.size()); block += size.bytes) {
    put(block + (dtype == DType::kQ6_K ? size.bytes - 2 : 0));
    if (two) put(block + 2);
  }
  return bytes;
}

}  // namespace sluice::impl::test
