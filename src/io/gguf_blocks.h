// The block types of GGUF: a run of weights shares scales, each weight is a few bits.
//
// 32 weights to a block
//   q8_0  half d, int8 q[32]                              w = d q
//   q4_0  half d, 4-bit q[32]                             w = d (q - 8)
//   q4_1  half d, half m, 4-bit q[32]                     w = d q + m
//   q5_0  half d, high bits[4], 4-bit q[32]               w = d (q - 16)
//   q5_1  half d, half m, high bits[4], 4-bit q[32]       w = d q + m
// 256 weights to a block, in sub-blocks with small integer scales s (and minima t)
//   q4_k  half d, half e, 6-bit (s, t)[8], 4-bit q[256]                    w = d s q - e t
//   q5_k  half d, half e, 6-bit (s, t)[8], high bits[32], 4-bit q[256]     w = d s q - e t
//   q6_k  4-bit q[256], high bit pairs[64], int8 s[16], half d             w = d s (q - 32)
//
// Every product but q6_k's last is exact in float32 (11 bits of d, at most 6 of s, at most 5 of
// q), so a weight is rounded once at most and the result does not depend on the order of the
// operations or on fused multiply-add: tests compare bit for bit.

#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace sluice::impl {

// Expands `n_blocks` blocks at `source` (any alignment) to n_blocks * block_size(dtype).elements
// floats. `dtype` is a block type.
void expand_blocks(DType dtype, const std::byte* source, int64_t n_blocks, float* out);

// Plain types, any alignment.
void expand_f16(const std::byte* source, int64_t count, float* out);
void expand_bf16(const std::byte* source, int64_t count, float* out);

}  // namespace sluice::impl
