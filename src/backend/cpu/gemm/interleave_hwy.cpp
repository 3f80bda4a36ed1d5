// The kernel of gemm/interleave.h in portable SIMD, for every instruction set Highway compiles
// here.

#include "backend/cpu/gemm/interleave.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/gemm/interleave_hwy.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // first: it includes this file once per target
#include <hwy/highway.h>
// clang-format on

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace sluice::impl::cpu::gemm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void interleave4(const BFloat16* rows, int64_t n, int64_t nr, int64_t panel_stride, BFloat16* to) {
  const hn::Simd<uint16_t, 4, 0> four;
  const auto* from = reinterpret_cast<const uint16_t*>(rows);
  auto* panel = reinterpret_cast<uint16_t*>(to);
  for (int64_t first = 0; first < n; first += nr, panel += panel_stride) {
    const int64_t end = std::min(first + nr, n);
    int64_t i = first;
    for (; i + 4 <= end; i += 4)
      hn::StoreInterleaved4(hn::LoadU(four, from + i), hn::LoadU(four, from + n + i),
                            hn::LoadU(four, from + 2 * n + i), hn::LoadU(four, from + 3 * n + i),
                            four, panel + (i - first) * 4);
    for (; i < end; ++i)
      for (int64_t q = 0; q < 4; ++q) panel[(i - first) * 4 + q] = from[q * n + i];
  }
}

}  // namespace sluice::impl::cpu::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::impl::cpu::gemm {

HWY_EXPORT(interleave4);

void interleave4(const BFloat16* rows, int64_t n, int64_t nr, int64_t panel_stride, BFloat16* to) {
  HWY_DYNAMIC_DISPATCH(interleave4)(rows, n, nr, panel_stride, to);
}

}  // namespace sluice::impl::cpu::gemm
#endif
