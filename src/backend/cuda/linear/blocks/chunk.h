// How block-quantised weights lie on the device, and how a lane reads them.
//
// A chunk is 16 rows by 64 columns, of large blocks 256, in one piece of memory; a tile is the
// chunks of 16 rows, in order. Rows and columns that do not exist have scales of 0.
// A chunk holds, one after the other and each for all of its spans (64 columns, two steps of 32):
//   quants   low 4 bits, or 8 bits of q8_0: 16 bytes to each of 32 lanes at a time
//   high     the bits above the low 4, of 5- and 6-bit types
//   scales   of steps; of large blocks the small integers
//   common   d and e of large blocks
// With g = lane / 4 and t = lane % 4, a lane has rows g and g + 8 of a chunk and 8 columns of each
// step, in pairs: 8t + 2p and the one after it, p = 0..3. q6_k has a scale for every 16 columns, so
// pairs 0 and 1 are at 4t + 2p, and 2 and 3 at 16 + 4t + 2(p - 2). Two pairs of a lane are what an
// m16n8k16 product takes as its left operand (primitives/mma.cuh).
//
// A pair is read as two bf16 numbers 128 + q: q becomes their lowest bits. q8_0 is read as q
// itself.

#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define SLUICE_LANE __host__ __device__ __forceinline__
#else
#define SLUICE_LANE inline
#endif
#ifdef __CUDA_ARCH__
#define SLUICE_UNROLL _Pragma("unroll")
#else
#define SLUICE_UNROLL
#endif

namespace sluice::impl::cuda::linear {

constexpr int kTileHeight = 16;
constexpr int kSpanDepth = 64, kStepDepth = 32;

template <DType kType>
struct ChunkFormat {
  static constexpr bool kLarge =
      kType == DType::kQ4_K || kType == DType::kQ5_K || kType == DType::kQ6_K;
  static constexpr bool kWhole = kType == DType::kQ8_0;  // quants of 8 bits
  static constexpr int kHighBits =
      kType == DType::kQ6_K                                                     ? 2
      : kType == DType::kQ5_0 || kType == DType::kQ5_1 || kType == DType::kQ5_K ? 1
                                                                                : 0;
  static constexpr bool kMinima = kType == DType::kQ4_1 || kType == DType::kQ5_1 ||
                                  kType == DType::kQ4_K || kType == DType::kQ5_K;
  static constexpr bool kHalves = kType == DType::kQ6_K;  // a scale for 16 columns, not 32
  // What a number of a pair is above q - zero, where w = scale (q - zero) + minimum.
  static constexpr int kOffset = kWhole                  ? 0
                                 : kType == DType::kQ4_0 ? 128 + 8
                                 : kType == DType::kQ5_0 ? 128 + 16
                                 : kType == DType::kQ6_K ? 128 + 32
                                                         : 128;

  static constexpr int kDepth = kLarge ? 256 : kSpanDepth;
  static constexpr int kSpans = kDepth / kSpanDepth;
  // Bytes of a span, and of the chunk.
  static constexpr int kQuants = kWhole ? 1024 : 512;
  static constexpr int kHigh = 128 * kHighBits;
  static constexpr int kScales = kMinima && !kLarge ? 128 : 64;
  static constexpr int kCommon = !kLarge ? 0 : kMinima ? 64 : 32;
  static constexpr int kHighAt = kSpans * kQuants;
  static constexpr int kScalesAt = kHighAt + kSpans * kHigh;
  static constexpr int kCommonAt = kScalesAt + kSpans * kScales;
  static constexpr int kBytes = kCommonAt + kCommon;
  static_assert(kBytes % 16 == 0);
};

// Calls work.template operator()<the type>().
template <typename Work>
auto with_block_type(DType dtype, const Work& work) {
  switch (dtype) {
    case DType::kQ4_0:
      return work.template operator()<DType::kQ4_0>();
    case DType::kQ4_1:
      return work.template operator()<DType::kQ4_1>();
    case DType::kQ5_0:
      return work.template operator()<DType::kQ5_0>();
    case DType::kQ5_1:
      return work.template operator()<DType::kQ5_1>();
    case DType::kQ4_K:
      return work.template operator()<DType::kQ4_K>();
    case DType::kQ5_K:
      return work.template operator()<DType::kQ5_K>();
    case DType::kQ6_K:
      return work.template operator()<DType::kQ6_K>();
    default:
      return work.template operator()<DType::kQ8_0>();
  }
}

// The first column of a pair, from that of its step.
template <DType kType>
SLUICE_LANE constexpr int pair_column(int t, int pair) {
  return ChunkFormat<kType>::kHalves ? 16 * (pair / 2) + 4 * t + 2 * (pair % 2) : 8 * t + 2 * pair;
}

struct alignas(16) FourWords {
  uint32_t at[4];
};
struct alignas(8) TwoWords {
  uint32_t at[2];
};
template <typename T>
SLUICE_LANE const T& words_at(const std::byte* from) {
  return *reinterpret_cast<const T*>(from);
}

SLUICE_LANE float float_of(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

// A byte of a word as 2^23 + byte.
SLUICE_LANE float byte_above(uint32_t word, int byte) {
#ifdef __CUDA_ARCH__
  return float_of(__byte_perm(word, 0x4b000000u, 0x7440u + static_cast<unsigned>(byte)));
#else
  return float_of(0x4b000000u | ((word >> (8 * byte)) & 0xffu));
#endif
}
constexpr float kAboveBytes = 0x1p23f;

// Upper halves of two numbers: bf16 where they have 8 significant bits at most.
SLUICE_LANE uint32_t upper_halves(float low, float high) {
#ifdef __CUDA_ARCH__
  return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632u);
#else
  return (std::bit_cast<uint32_t>(low) >> 16) | (std::bit_cast<uint32_t>(high) & 0xffff0000u);
#endif
}

SLUICE_LANE float half_in(uint32_t word, int which) {
  const auto bits = static_cast<uint16_t>(word >> (16 * which));
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(bits));
#else
  return half_to_float(bits);
#endif
}

// (word & mask) | bits, as one instruction.
SLUICE_LANE uint32_t masked_or(uint32_t word, uint32_t mask, uint32_t bits) {
#ifdef __CUDA_ARCH__
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;\n" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
  return result;
#else
  return (word & mask) | bits;
#endif
}

SLUICE_LANE constexpr uint32_t shifted(uint32_t word, int right) {
  return right >= 0 ? word >> right : word << -right;
}

// The weights of a lane in a span: [step][row g or g + 8][pair].
template <DType kType>
SLUICE_LANE void read_pairs(const std::byte* chunk, int span, int lane,
                            uint32_t (&pairs)[2][2][4]) {
  using Format = ChunkFormat<kType>;
  if constexpr (Format::kWhole) {
    SLUICE_UNROLL
    for (int step = 0; step < 2; ++step) {
      const auto quants =
          words_at<FourWords>(chunk + span * Format::kQuants + 512 * step + 16 * lane);
      SLUICE_UNROLL
      for (int i = 0; i < 8; ++i) {
        const uint32_t word = quants.at[i / 2];
        pairs[step][i / 4][i % 4] =
            upper_halves(byte_above(word, i % 2 * 2) - (kAboveBytes + 128),
                         byte_above(word, i % 2 * 2 + 1) - (kAboveBytes + 128));
      }
    }
  } else {
    const auto quants = words_at<FourWords>(chunk + span * Format::kQuants + 16 * lane);
    constexpr uint32_t kMask = Format::kHighBits == 2 ? 0x00300030u : 0x00100010u;
    TwoWords high{};
    const std::byte* above = chunk + Format::kHighAt + span * Format::kHigh;
    if constexpr (Format::kHighBits == 1) high.at[0] = words_at<uint32_t>(above + 4 * lane);
    if constexpr (Format::kHighBits == 2) high = words_at<TwoWords>(above + 8 * lane);
    SLUICE_UNROLL
    for (int i = 0; i < 16; ++i) {
      const int step = i / 8, row = i / 4 % 2, pair = i % 4;
      uint32_t bits = masked_or(quants.at[i / 4] >> (4 * pair), 0x000f000fu, 0x43004300u);
      if constexpr (Format::kHighBits == 1) bits |= shifted(high.at[0], i - 4) & kMask;
      if constexpr (Format::kHighBits == 2) bits |= shifted(high.at[step], 2 * (i % 8) - 4) & kMask;
      pairs[step][row][pair] = bits;
    }
  }
}

// d and e of large blocks, of rows g and g + 8. The products with 2^23 take it off again.
struct CommonScales {
  float d[2], d_above[2], e[2], e_above[2];
};
template <DType kType>
SLUICE_LANE CommonScales read_common(const std::byte* chunk, int lane) {
  using Format = ChunkFormat<kType>;
  CommonScales common{};
  if constexpr (Format::kLarge) {
    const int g = lane / 4;
    const std::byte* from = chunk + Format::kCommonAt;
    SLUICE_UNROLL
    for (int row = 0; row < 2; ++row) {
      if constexpr (Format::kMinima) {
        const uint32_t both = words_at<TwoWords>(from + 8 * g).at[row];
        common.d[row] = half_in(both, 0);
        common.e[row] = half_in(both, 1);
        common.d_above[row] = -kAboveBytes * common.d[row];
        common.e_above[row] = kAboveBytes * common.e[row];
      } else {
        common.d[row] = half_in(words_at<uint32_t>(from + 4 * g), row);
      }
    }
  }
  return common;
}

// Of rows g and g + 8 in one step: w = scale (q - zero) + minimum.
struct StepScales {
  float scale[2][2];  // [columns 0-15 or 16-31][row]; the same twice but for q6_k
  float minimum[2];
};
template <DType kType>
SLUICE_LANE StepScales read_scales(const std::byte* chunk, int span, int step, int lane,
                                   const CommonScales& common) {
  using Format = ChunkFormat<kType>;
  const std::byte* from = chunk + Format::kScalesAt + span * Format::kScales;
  const int g = lane / 4;
  StepScales scales{};
  SLUICE_UNROLL
  for (int row = 0; row < 2; ++row) {
    if constexpr (Format::kHalves) {
      const uint32_t four = words_at<TwoWords>(from + 8 * g).at[step];
      scales.scale[0][row] = common.d[row] * (byte_above(four, row) - (kAboveBytes + 128));
      scales.scale[1][row] = common.d[row] * (byte_above(four, 2 + row) - (kAboveBytes + 128));
    } else if constexpr (Format::kLarge) {
      const uint32_t four = words_at<TwoWords>(from + 8 * g).at[step];
      scales.scale[0][row] = fmaf(common.d[row], byte_above(four, 2 * row), common.d_above[row]);
      scales.minimum[row] =
          fmaf(-common.e[row], byte_above(four, 2 * row + 1), common.e_above[row]);
    } else if constexpr (Format::kMinima) {
      const uint32_t both = words_at<FourWords>(from + 16 * g).at[2 * step + row];
      scales.scale[0][row] = half_in(both, 0);
      scales.minimum[row] = half_in(both, 1);
    } else {
      scales.scale[0][row] = half_in(words_at<TwoWords>(from + 8 * g).at[step], row);
    }
    if constexpr (!Format::kHalves) scales.scale[1][row] = scales.scale[0][row];
  }
  return scales;
}

// The weights of a lane in a span as numbers, those that expand_blocks (io/gguf_blocks.h) gives:
// [step][row][2 pair + which].
template <DType kType>
SLUICE_LANE void read_values(const std::byte* chunk, int span, int lane, const CommonScales& common,
                             float (&values)[2][2][8]) {
  using Format = ChunkFormat<kType>;
  uint32_t pairs[2][2][4];
  read_pairs<kType>(chunk, span, lane, pairs);
  SLUICE_UNROLL
  for (int step = 0; step < 2; ++step) {
    const StepScales scales = read_scales<kType>(chunk, span, step, lane, common);
    SLUICE_UNROLL
    for (int i = 0; i < 16; ++i) {
      const int row = i / 8, pair = i % 8 / 2;
      const uint32_t bits =
          i % 2 == 0 ? pairs[step][row][pair] << 16 : pairs[step][row][pair] & 0xffff0000u;
      const float q = float_of(bits) - static_cast<float>(Format::kOffset);
      const float scale = scales.scale[pair / 2][row];
      values[step][row][i % 8] = Format::kMinima ? fmaf(scale, q, scales.minimum[row]) : scale * q;
    }
  }
}

}  // namespace sluice::impl::cuda::linear
