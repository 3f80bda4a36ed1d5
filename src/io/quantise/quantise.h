// Rows of float32 -> blocks of GGUF's types (io/gguf_blocks.h).
//
// Blocks of 32 take their scale from their extreme value, blocks with a minimum from their range,
// and weights round to the nearest step. Sub-blocks of q4_k, q5_k and q6_k try several scales and
// keep the one of least squared error; their scales and minima are then rounded to integers, and
// weights round to the nearest step of what was stored.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace sluice::impl {

// Writes x.size() / block_size(dtype).elements blocks. `dtype` is a block type and the size a
// multiple of its elements. Throws Error where a number is not finite or too large for a half.
void quantise_blocks(DType dtype, std::span<const float> x, std::byte* out);

}  // namespace sluice::impl
