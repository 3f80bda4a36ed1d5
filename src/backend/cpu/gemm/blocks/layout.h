// Block types (io/gguf_blocks.h) as the CPU multiplies them: eight rows of a matrix side by side,
// so that one vector holds weights of several rows. A group is eight rows; a group's block is one
// block of each of them:
//
//   half   d[8]                                every type
//   half   m[8]                                q4_1, q5_1; e[8] in q4_k, q5_k
//   uint8  s[8][8], t[8][8]                    q4_k, q5_k: (sub-block, row)
//   int8   s[16][8]                            q6_k: (sixteen weights, row)
//   then, for every 32 weights of k:
//   uint8  high[32]                            5 bits, see below
//   uint8  high[64]                            6 bits: bits 2j, 2j + 1 belong to chunk j
//   uint8  low[2][64]                          4 bits and more: byte i of low[j] holds chunk j in
//                                              its low nibble and chunk j + 2 in its high one
//   int8   q[4][64]                            8 bits
//
// A chunk is 8 of the 32 weights; its byte i belongs to row i / 8, weight i % 8. With 5 bits, bit
// 4 (i / 32) + j of high[i % 32] is the fifth bit of byte i of chunk j.
//
// Each part has the size that it has in the file, but scales of q4_k and q5_k, which take 8 bits
// in place of 6: 3% more.

#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace sluice::impl::cpu::gemm {

constexpr int64_t kGroupRows = 8;
constexpr int64_t kChunk = 8;      // weights
constexpr int64_t kSubBlock = 32;  // weights
constexpr int64_t kLargestBlock = 256;

struct BlockLayout {
  int bits;             // of a weight
  int offset;           // w = scale (q + offset) + minimum
  bool minima;          // a minimum to every scale
  int64_t block;        // weights of a row
  int64_t scale_width;  // weights that share a scale
  int64_t scales;       // where integer scales begin, 0: none
  int64_t weights;      // where weights begin
  int64_t sub_bytes;    // of 32 weights of eight rows
  int64_t bytes;        // of a group's block
};

constexpr BlockLayout make_block_layout(DType dtype) {
  const bool large = dtype == DType::kQ4_K || dtype == DType::kQ5_K || dtype == DType::kQ6_K;
  BlockLayout layout{};
  layout.bits = dtype == DType::kQ8_0                                                     ? 8
                : dtype == DType::kQ6_K                                                   ? 6
                : dtype == DType::kQ5_0 || dtype == DType::kQ5_1 || dtype == DType::kQ5_K ? 5
                                                                                          : 4;
  layout.offset = dtype == DType::kQ4_0   ? -8
                  : dtype == DType::kQ5_0 ? -16
                  : dtype == DType::kQ6_K ? -32
                                          : 0;
  layout.minima = dtype == DType::kQ4_1 || dtype == DType::kQ5_1 || dtype == DType::kQ4_K ||
                  dtype == DType::kQ5_K;
  layout.block = large ? 256 : 32;
  layout.scale_width = dtype == DType::kQ6_K ? 16 : 32;
  const int64_t halves = (layout.minima ? 2 : 1) * 2 * kGroupRows;
  layout.scales = large ? halves : 0;
  layout.weights = halves + (large ? 128 : 0);
  layout.sub_bytes = kSubBlock * kGroupRows * layout.bits / 8;
  layout.bytes = layout.weights + layout.block / kSubBlock * layout.sub_bytes;
  return layout;
}

// What unsigned weights lack to the type's, 8 bits with 128 added: a power of two or 0.
constexpr int unsigned_offset(const BlockLayout& layout) {
  return layout.bits == 8 ? -128 : layout.offset;
}

template <DType kType>
inline constexpr BlockLayout kBlockLayout = make_block_layout(kType);

// Packs block `block` of eight rows; a null row is zeros.
void pack_group_block(DType dtype, const std::byte* const rows[kGroupRows], int64_t block,
                      std::byte* out);

}  // namespace sluice::impl::cpu::gemm
