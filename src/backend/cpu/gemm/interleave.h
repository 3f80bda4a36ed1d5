// Rows of values into panels whose kq is 4, see gemm/gemm.h.

#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace sluice::impl::cpu::gemm {

// Four rows that lie side by side, (4, n), become columns of four numbers, (n, 4): `nr` of them to
// a panel, and the panels `panel_stride` numbers apart.
void interleave4(const BFloat16* rows, int64_t n, int64_t nr, int64_t panel_stride, BFloat16* to);

}  // namespace sluice::impl::cpu::gemm
