// Refined attention: the epilogue of the prefill kernels.

#pragma once

#include "backend/cuda/attention/dense/tile.cuh"
#include "backend/cuda/attention/refine/work.cuh"

namespace sluice::impl::cuda::refine {

using namespace dense;

// Writes columns [column, column + 8 kN) of this lane's two rows, as products leave them.
template <int kN>
__device__ void store_rows(const RefineView& view, int head, const LaneRows& rows, int column,
                           const float (&sums)[kN][4], const float (&totals)[2]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  auto* out = reinterpret_cast<__nv_bfloat16*>(view.out) + head * view.head_dim;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!rows.in_pass[half]) continue;
    const float inverse = 1 / totals[half];
    __nv_bfloat16* row = out + (rows.position[half] - view.first_position) * view.out_stride;
#pragma unroll
    for (int n = 0; n < kN; ++n)
      if (column + n * 8 < view.head_dim)
        *reinterpret_cast<uint32_t*>(row + column + n * 8 + 2 * t) =
            narrowed(sums[n][2 * half] * inverse, sums[n][2 * half + 1] * inverse);
  }
}

}  // namespace sluice::impl::cuda::refine
