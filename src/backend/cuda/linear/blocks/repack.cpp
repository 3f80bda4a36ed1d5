#include "backend/cuda/linear/blocks/repack.h"

#include <algorithm>
#include <cstring>

#include "backend/cuda/linear/blocks/chunk.h"
#include "core/error.h"

namespace sluice::impl::cuda::linear {
namespace {

constexpr int kSmallBlock = 32;

uint8_t byte_at(const std::byte* from, int i) { return std::to_integer<uint8_t>(from[i]); }

// What a block holds of 32 columns, or of large blocks 256: quants as they are counted from 0 (of
// q8_0 q + 128), and scales.
struct RawBlock {
  uint8_t quants[256];
  uint16_t d, e;                  // halves; e: the minimum of a small block
  uint8_t scales[16], minima[8];  // of large blocks; scales of q6_k + 128
};

uint16_t half_at(const std::byte* from) {
  uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  return bits;
}

template <DType kType>
void read_small(const std::byte* block, RawBlock& raw) {
  using Format = ChunkFormat<kType>;
  raw.d = half_at(block);
  block += 2;
  if constexpr (Format::kWhole) {
    for (int i = 0; i < kSmallBlock; ++i)
      raw.quants[i] = static_cast<uint8_t>(byte_at(block, i) ^ 0x80u);
    return;
  }
  if constexpr (Format::kMinima) {
    raw.e = half_at(block);
    block += 2;
  }
  uint32_t high = 0;
  if constexpr (Format::kHighBits == 1) {
    std::memcpy(&high, block, sizeof high);
    block += 4;
  }
  for (int i = 0; i < kSmallBlock; ++i) {
    const uint32_t low = i < 16 ? byte_at(block, i) & 0xfu : uint32_t{byte_at(block, i - 16)} >> 4;
    raw.quants[i] = static_cast<uint8_t>(low | ((high >> i) & 1u) << 4);
  }
}

// Twelve bytes hold eight scales and eight minima of 6 bits: io/gguf_blocks.cpp.
void read_small_scales(const std::byte* packed, RawBlock& raw) {
  for (int i = 0; i < 4; ++i) {
    const uint32_t s = byte_at(packed, i), t = byte_at(packed, i + 4), low = byte_at(packed, i + 8);
    raw.scales[i] = static_cast<uint8_t>(s & 0x3fu);
    raw.minima[i] = static_cast<uint8_t>(t & 0x3fu);
    raw.scales[i + 4] = static_cast<uint8_t>((low & 0xfu) | (s >> 6) << 4);
    raw.minima[i + 4] = static_cast<uint8_t>(low >> 4 | (t >> 6) << 4);
  }
}

template <DType kType>
void read_large(const std::byte* block, RawBlock& raw) {
  if constexpr (kType == DType::kQ6_K) {
    for (int i = 0; i < 256; ++i) {
      const int half = i / 128, quarter = i / 32 % 4, at = i % 32;
      const uint32_t low = byte_at(block, 64 * half + 32 * (quarter % 2) + at);
      const uint32_t high = byte_at(block, 128 + 32 * half + at);
      raw.quants[i] = static_cast<uint8_t>((low >> (quarter < 2 ? 0 : 4) & 0xfu) |
                                           (high >> (2 * quarter) & 3u) << 4);
    }
    for (int i = 0; i < 16; ++i)
      raw.scales[i] = static_cast<uint8_t>(byte_at(block, 192 + i) ^ 0x80u);
    raw.d = half_at(block + 208);
  } else {
    raw.d = half_at(block);
    raw.e = half_at(block + 2);
    read_small_scales(block + 4, raw);
    const std::byte* high = block + 16;
    const std::byte* low = high + (kType == DType::kQ5_K ? 32 : 0);
    for (int i = 0; i < 256; ++i) {
      const int step = i / 32;
      uint32_t q = byte_at(low, 32 * (step / 2) + i % 32);
      q = step % 2 == 0 ? q & 0xfu : q >> 4;
      if constexpr (kType == DType::kQ5_K) q |= (uint32_t{byte_at(high, i % 32)} >> step & 1u) << 4;
      raw.quants[i] = static_cast<uint8_t>(q);
    }
  }
}

void put_half(std::byte* to, uint16_t half) { std::memcpy(to, &half, sizeof half); }

// What lane t of a row has of a step: the low four bits of 8 columns, and the high ones.
struct LaneQuants {
  uint32_t low = 0, high = 0;
};
template <DType kType>
LaneQuants lane_quants(const uint8_t* quants, int t) {
  LaneQuants lane;
  for (int pair = 0; pair < 4; ++pair) {
    const uint8_t* q = quants + pair_column<kType>(t, pair);
    const uint32_t both = q[0] | uint32_t{q[1]} << 16;
    lane.low |= (both & 0x000f000fu) << (4 * pair);
    lane.high |= (both >> 4 & 0x000f000fu) << (ChunkFormat<kType>::kHighBits * pair);
  }
  return lane;
}

// Simple on purpose: GCC 12 at -O2 lost bits where this stood inside the loop that packs them.
void add_word(std::byte* to, uint32_t bits) {
  uint32_t word = 0;
  std::memcpy(&word, to, sizeof word);
  word |= bits;
  std::memcpy(to, &word, sizeof word);
}

// The quants of one step of a row: 8 columns to each of four lanes. Of a chunk of zeros, whose
// words steps and rows share.
template <DType kType>
void put_quants(const uint8_t* quants, int row, int span, int step, std::byte* chunk) {
  using Format = ChunkFormat<kType>;
  const int upper = row / 8, first_lane = row % 8 * 4;
  std::byte* whole = chunk + span * Format::kQuants + 512 * step + 8 * upper;
  std::byte* low = chunk + span * Format::kQuants + 4 * (2 * step + upper);
  std::byte* high = chunk + Format::kHighAt + span * Format::kHigh;
  for (int t = 0; t < 4; ++t) {
    const int lane = first_lane + t;
    if constexpr (Format::kWhole) {
      std::memcpy(whole + 16 * lane, quants + 8 * t, 8);
    } else {
      const LaneQuants packed = lane_quants<kType>(quants, t);
      add_word(low + 16 * lane, packed.low);
      if constexpr (Format::kHighBits == 1)
        add_word(high + 4 * lane, packed.high << (4 * (2 * step + upper)));
      else if constexpr (Format::kHighBits == 2)
        add_word(high + 8 * lane + 4 * step, packed.high << (8 * upper));
    }
  }
}

template <DType kType>
void put_scales(const RawBlock& raw, int row, int span, int step, std::byte* chunk) {
  using Format = ChunkFormat<kType>;
  const int g = row % 8, upper = row / 8, whole_step = 2 * span + step;
  std::byte* to = chunk + Format::kScalesAt + span * Format::kScales;
  if constexpr (Format::kHalves) {
    for (int part = 0; part < 2; ++part)
      to[8 * g + 4 * step + 2 * part + upper] = std::byte{raw.scales[2 * whole_step + part]};
  } else if constexpr (Format::kLarge) {
    to[8 * g + 4 * step + 2 * upper] = std::byte{raw.scales[whole_step]};
    to[8 * g + 4 * step + 2 * upper + 1] = std::byte{raw.minima[whole_step]};
  } else if constexpr (Format::kMinima) {
    put_half(to + 16 * g + 4 * (2 * step + upper), raw.d);
    put_half(to + 16 * g + 4 * (2 * step + upper) + 2, raw.e);
  } else {
    put_half(to + 8 * g + 2 * (2 * step + upper), raw.d);
  }
}

template <DType kType>
void put_common(const RawBlock& raw, int row, std::byte* chunk) {
  using Format = ChunkFormat<kType>;
  const int g = row % 8, upper = row / 8;
  std::byte* to = chunk + Format::kCommonAt;
  if constexpr (Format::kMinima) {
    put_half(to + 8 * g + 4 * upper, raw.d);
    put_half(to + 8 * g + 4 * upper + 2, raw.e);
  } else {
    put_half(to + 4 * g + 2 * upper, raw.d);
  }
}

// One row's share of a chunk, whose blocks begin at `blocks`; n of them exist.
template <DType kType>
void put_row(const std::byte* blocks, int64_t n, int row, std::byte* chunk) {
  using Format = ChunkFormat<kType>;
  const int64_t bytes = block_size(kType).bytes;
  RawBlock raw{};
  if constexpr (Format::kLarge) {
    read_large<kType>(blocks, raw);
    put_common<kType>(raw, row, chunk);
    for (int step = 0; step < 2 * Format::kSpans; ++step) {
      put_quants<kType>(raw.quants + kStepDepth * step, row, step / 2, step % 2, chunk);
      put_scales<kType>(raw, row, step / 2, step % 2, chunk);
    }
  } else {
    for (int step = 0; step < std::min<int64_t>(n, 2); ++step) {
      read_small<kType>(blocks + step * bytes, raw);
      put_quants<kType>(raw.quants, row, 0, step, chunk);
      put_scales<kType>(raw, row, 0, step, chunk);
    }
  }
}

}  // namespace

bool packs_into_chunks(DType dtype, int64_t n_in) {
  const BlockSize block = block_size(dtype);
  return block.elements > 1 && n_in > 0 && n_in % block.elements == 0;
}

int64_t chunks_of(DType dtype, int64_t n_in) {
  return with_block_type(dtype, [&]<DType kType>() {
    constexpr int64_t kDepth = ChunkFormat<kType>::kDepth;
    return (n_in + kDepth - 1) / kDepth;
  });
}

int64_t chunk_bytes(DType dtype) {
  return with_block_type(dtype, []<DType kType>() { return int64_t{ChunkFormat<kType>::kBytes}; });
}

void repack_tile(DType dtype, const std::byte* const (&rows)[16], int64_t n_in, std::byte* to) {
  SLUICE_CHECK(packs_into_chunks(dtype, n_in));
  const BlockSize block = block_size(dtype);
  const int64_t n_chunks = chunks_of(dtype, n_in), bytes = chunk_bytes(dtype);
  std::memset(to, 0, static_cast<size_t>(n_chunks * bytes));
  with_block_type(dtype, [&]<DType kType>() {
    constexpr int64_t kBlocks = ChunkFormat<kType>::kLarge ? 1 : 2;  // of a row in a chunk
    for (int row = 0; row < 16; ++row) {
      if (rows[row] == nullptr) continue;
      for (int64_t chunk = 0; chunk < n_chunks; ++chunk)
        put_row<kType>(rows[row] + kBlocks * chunk * block.bytes,
                       n_in / block.elements - kBlocks * chunk, row, to + chunk * bytes);
    }
  });
}

}  // namespace sluice::impl::cuda::linear
