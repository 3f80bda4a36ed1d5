// SIMD kernels between rows of floats and rows of int8 with a scale, backend/cache_kind.h.

#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace sluice::impl::cpu::primitives {

// Writes a row as int8 and returns its scale, the same bits as to_int8() and int8_scale().
float to_int8_row(const float* from, int64_t n, int8_t* to);
float to_int8_row(const BFloat16* from, int64_t n, int8_t* to);
// to[i] = from[i] * scale.
void from_int8_row(const int8_t* from, float scale, int64_t n, float* to);
void from_int8_row(const int8_t* from, float scale, int64_t n, BFloat16* to);

}  // namespace sluice::impl::cpu::primitives
