#include "backend/cpu/gemm/blocks/layout.h"

#include <array>
#include <cstring>

#include "core/error.h"

namespace sluice::impl::cpu::gemm {
namespace {

// A block of one row: its halves, its integer scales, and its weights as whole bytes.
struct RowBlock {
  std::array<std::byte, 4> halves{};  // d, and m or e
  std::array<uint8_t, 16> scales{};   // s; then t where there are minima
  std::array<uint8_t, 256> weights{};
};

uint8_t at(const std::byte* bytes, int64_t i) { return std::to_integer<uint8_t>(bytes[i]); }

// Weights i and i + 16 of 32 lie in byte i.
void read_nibbles(const std::byte* q, uint8_t* out) {
  for (int64_t i = 0; i < 16; ++i) {
    out[i] = at(q, i) & 0xf;
    out[i + 16] = at(q, i) >> 4;
  }
}

void add_fifth_bits(const std::byte* high, uint8_t* out) {
  for (int64_t i = 0; i < 32; ++i)
    out[i] = static_cast<uint8_t>(out[i] | (((at(high, i / 8) >> (i % 8)) & 1) << 4));
}

// Eight 6-bit scales and eight minima in twelve bytes.
void read_scales(const std::byte* packed, uint8_t* scales) {
  for (int64_t i = 0; i < 4; ++i) {
    scales[i] = at(packed, i) & 0x3f;
    scales[i + 8] = at(packed, i + 4) & 0x3f;
    scales[i + 4] = static_cast<uint8_t>((at(packed, i + 8) & 0xf) | (at(packed, i) >> 6 << 4));
    scales[i + 12] = static_cast<uint8_t>((at(packed, i + 8) >> 4) | (at(packed, i + 4) >> 6 << 4));
  }
}

// Sub-blocks 2g and 2g + 1 lie in the low and high nibbles of 32 bytes; `high`, where it is there,
// has bit s of byte i for weight i of sub-block s.
void read_large(const std::byte* q, const std::byte* high, uint8_t* out) {
  for (int64_t s = 0; s < 8; ++s)
    for (int64_t i = 0; i < 32; ++i) {
      const int nibble = at(q, s / 2 * 32 + i) >> (s % 2 * 4) & 0xf;
      const int fifth = high == nullptr ? 0 : at(high, i) >> s & 1;
      out[s * 32 + i] = static_cast<uint8_t>(nibble | fifth << 4);
    }
}

void read_q6_k(const std::byte* block, RowBlock& row) {
  for (int64_t i = 0; i < 256; ++i) {
    const int64_t half = i / 128, quarter = i % 128 / 32, k = i % 32;
    const int nibble = at(block, half * 64 + quarter % 2 * 32 + k) >> (quarter < 2 ? 0 : 4) & 0xf;
    const int pair = at(block, 128 + half * 32 + k) >> (2 * quarter) & 0x3;
    row.weights[static_cast<size_t>(i)] = static_cast<uint8_t>(nibble | pair << 4);
  }
  std::memcpy(row.scales.data(), block + 192, 16);
  std::memcpy(row.halves.data(), block + 208, 2);
}

RowBlock read_block(DType dtype, const std::byte* block) {
  RowBlock row;
  if (dtype == DType::kQ6_K) {
    read_q6_k(block, row);
    return row;
  }
  const BlockLayout layout = make_block_layout(dtype);
  const int64_t halves = layout.minima ? 4 : 2;
  std::memcpy(row.halves.data(), block, static_cast<size_t>(halves));
  const std::byte* rest = block + halves;
  if (layout.bits == 8) {
    std::memcpy(row.weights.data(), rest, 32);
  } else if (layout.block == 256) {
    read_scales(rest, row.scales.data());
    const std::byte* high = layout.bits == 5 ? rest + 12 : nullptr;
    read_large(rest + 12 + (layout.bits == 5 ? 32 : 0), high, row.weights.data());
  } else {
    read_nibbles(rest + (layout.bits == 5 ? 4 : 0), row.weights.data());
    if (layout.bits == 5) add_fifth_bits(rest, row.weights.data());
  }
  return row;
}

// 32 weights of row `r` into zeroed bytes.
void put_weights(int bits, int64_t r, const uint8_t* weights, uint8_t* out) {
  uint8_t* low = out + (bits == 5 ? 32 : bits == 6 ? 64 : 0);
  const auto add = [](uint8_t& byte, int value) { byte = static_cast<uint8_t>(byte | value); };
  for (int64_t j = 0; j < 4; ++j)
    for (int64_t k = 0; k < kChunk; ++k) {
      const int64_t i = r * kChunk + k;
      const int q = weights[j * kChunk + k];
      if (bits == 8) {
        out[j * 64 + i] = static_cast<uint8_t>(q);
        continue;
      }
      add(low[j % 2 * 64 + i], (q & 0xf) << (j / 2 * 4));
      if (bits == 5) add(out[i % 32], (q >> 4) << (i / 32 * 4 + j));
      if (bits == 6) add(out[i], (q >> 4) << (2 * j));
    }
}

}  // namespace

void pack_group_block(DType dtype, const std::byte* const rows[kGroupRows], int64_t block,
                      std::byte* out) {
  const BlockLayout layout = make_block_layout(dtype);
  const int64_t bytes = block_size(dtype).bytes;
  SLUICE_CHECK(layout.block == block_size(dtype).elements);
  std::memset(out, 0, static_cast<size_t>(layout.bytes));
  auto* to = reinterpret_cast<uint8_t*>(out);
  for (int64_t r = 0; r < kGroupRows; ++r) {
    if (rows[r] == nullptr) continue;
    const RowBlock row = read_block(dtype, rows[r] + block * bytes);
    std::memcpy(to + 2 * r, row.halves.data(), 2);
    if (layout.minima) std::memcpy(to + 2 * (kGroupRows + r), row.halves.data() + 2, 2);
    if (layout.scales > 0)
      for (int64_t s = 0; s < 16; ++s)
        to[layout.scales + s * kGroupRows + r] = row.scales[static_cast<size_t>(s)];
    for (int64_t s = 0; s < layout.block / kSubBlock; ++s)
      put_weights(layout.bits, r, row.weights.data() + s * kSubBlock,
                  to + layout.weights + s * layout.sub_bytes);
  }
}

}  // namespace sluice::impl::cpu::gemm
