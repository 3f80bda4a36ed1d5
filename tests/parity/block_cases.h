// Matrices in random blocks of every type: all bits of a block occur, scales are of one size.

#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "backend/backend.h"
#include "io/gguf_blocks.h"

namespace sluice::impl::test {

inline constexpr DType kBlockTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                                        DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// A positive half below 2^-4, 2^-8 or more.
inline uint16_t small_half(std::mt19937& random) {
  return static_cast<uint16_t>((7u << 10) + random() % (4u << 10));
}

inline std::vector<std::byte> random_blocks(DType type, int64_t n_blocks, uint32_t seed) {
  const int64_t bytes = block_size(type).bytes;
  std::mt19937 random(seed);
  std::vector<std::byte> blocks(static_cast<size_t>(n_blocks * bytes));
  for (std::byte& b : blocks) b = static_cast<std::byte>(random() & 0xff);
  for (int64_t i = 0; i < n_blocks; ++i) {
    std::byte* block = blocks.data() + i * bytes;
    const auto put = [&](int64_t at) {
      uint16_t half = small_half(random);
      if (random() % 2 == 0) half |= 0x8000;
      std::memcpy(block + at, &half, sizeof(half));
    };
    put(type == DType::kQ6_K ? 208 : 0);
    if (type == DType::kQ4_1 || type == DType::kQ5_1 || type == DType::kQ4_K ||
        type == DType::kQ5_K)
      put(2);
  }
  return blocks;
}

// A matrix that holds its blocks itself.
struct BlockMatrix {
  BlockMatrix(std::vector<StoredRows> rows, int64_t n_in, uint32_t seed,
              std::vector<float> bias = {}) {
    auto owned = std::make_shared<std::vector<std::vector<std::byte>>>();
    for (StoredRows& part : rows) {
      const int64_t n_blocks = (part.end - part.begin) * n_in / block_size(part.dtype).elements;
      owned->push_back(random_blocks(part.dtype, n_blocks, seed++));
      part.bytes = owned->back().data();
      const size_t at = weights.size();
      weights.resize(at + static_cast<size_t>((part.end - part.begin) * n_in));
      if (block_size(part.dtype).elements > 1)
        expand_blocks(part.dtype, part.bytes, n_blocks, weights.data() + at);
      else
        fill_plain(part, n_in, owned->back(), weights.data() + at);
    }
    source.n_out = rows.back().end;
    source.n_in = n_in;
    source.read_rows = [n_in, all = weights](int64_t begin, int64_t end, float* out) {
      std::copy(all.begin() + begin * n_in, all.begin() + end * n_in, out);
    };
    source.bias = std::move(bias);
    source.stored = std::move(rows);
    source.owner = std::move(owned);
  }

  MatrixSource source;
  std::vector<float> weights;  // (n_out, n_in), expanded

 private:
  // bf16 numbers of the size of the blocks'.
  static void fill_plain(const StoredRows& part, int64_t n_in, std::vector<std::byte>& bytes,
                         float* out) {
    std::mt19937 random(1);
    for (int64_t i = 0; i < (part.end - part.begin) * n_in; ++i) {
      const BFloat16 x = to_bfloat16(static_cast<float>(random() % 255) * 0x1p-8f - 0.5f);
      std::memcpy(bytes.data() + 2 * i, &x, sizeof(x));
      out[i] = to_float(x);
    }
  }
};

}  // namespace sluice::impl::test
