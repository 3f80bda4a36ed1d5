// narrow() of primitives/rows.h by bf16 instructions of this CPU, or nullptr; the same bits.
//
// Plain data alone: files for one instruction set include this.

#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace sluice::impl::cpu::primitives {

using NarrowFunction = void (*)(const float* from, int64_t n, BFloat16* to);
NarrowFunction narrow_bfcvt();   // Arm FEAT_BF16; in gemm/gemm_bfmmla.cpp, which may use it
NarrowFunction narrow_avx512();  // x86 AVX512_BF16

}  // namespace sluice::impl::cpu::primitives
