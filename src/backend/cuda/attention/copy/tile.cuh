// What attention of mode `copy` by counts does to scores, on Hopper.

#pragma once

#include "backend/cuda/attention/copy/kernels.h"
#include "backend/cuda/attention/dense/tile.cuh"

namespace sluice::impl::cuda::copy {

using namespace dense;

// Scores of keys behind that of the query itself become -inf; own: that key of the tile, for the
// first of a lane's rows.
template <int kN>
__device__ void mask_later(float (&scores)[kN][4], int own) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (n * 8 + 2 * t + i % 2 > own + i / 2 * 8) scores[n][i] = -INFINITY;
}

// Scores become weights in place, as take_scores has it, each times its count: `before` by key, and
// the bytes of `since`, as SinceArgs has them.
template <int kN>
__device__ void take_counted(Softmax& softmax, float (&scores)[kN][4], float factor,
                             float (&kept)[2], const float* before, const uint4* since) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  float shift[2], total[2] = {0, 0};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float now = largest_score(softmax, scores, half);
    shift[half] = now * factor;  // every query sees the first key
    kept[half] = exp2_fast(softmax.largest[half] * factor - shift[half]);
    softmax.largest[half] = now;
  }
#pragma unroll
  for (int part = 0; part < kN / 4; ++part) {
    const uint4 words = since[part * (kRepsTileRows / 16 * 32)];
    const uint32_t four[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int of_four = 0; of_four < 4; ++of_four) {
      const int n = 4 * part + of_four;
      const float2 at_first = *reinterpret_cast<const float2*>(before + n * 8 + 2 * t);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t bits = __byte_perm(four[of_four], __float_as_uint(kByteBase),
                                          0x7440 + static_cast<unsigned>(i));
        const float count = __uint_as_float(bits) + (i % 2 == 0 ? at_first.x : at_first.y);
        scores[n][i] = exp2_fast(fmaf(scores[n][i], factor, -shift[i / 2])) * count;
        total[i / 2] += scores[n][i];
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
    softmax.total[half] = softmax.total[half] * kept[half] + total[half];
}

}  // namespace sluice::impl::cuda::copy
