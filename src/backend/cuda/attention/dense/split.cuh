// Attention of few queries on the tensor cores, dense or of mode `keys`: the rows of one tile are
// the query heads of a key head, and keys are split over blocks and, within a tile, over warps.
// Stages that such kernels share.

#pragma once

#include <algorithm>

#include "backend/cuda/attention/dense/parts.cuh"

namespace sluice::impl::cuda::dense::few {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = 16;
constexpr int kKeys = 16 * kWarps;  // of a tile, 16 to a warp

template <int kD>
struct Sizes {
  // Tiles in shared memory; the copies of all but one are in flight.
  static constexpr int kStages = kD <= 64 ? 4 : (kD <= 128 ? 3 : 2);
  static constexpr int kTile = kKeys * kTileStride<kD>;  // numbers, of keys or of values
  static constexpr int kBytes = kStages * 2 * 2 * kTile;
};

// Row g (half 0) or g + 8 (half 1) of the queries as the left operand; from: where it begins, or
// nullptr.
template <int kD>
__device__ __forceinline__ void load_query_row(uint32_t (&query)[kD / 16][4], int half,
                                               const __nv_bfloat16* from, int head_dim) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int k = 0; k < kD / 16; ++k)
#pragma unroll
    for (int k_half = 0; k_half < 2; ++k_half) {
      const int column = k * 16 + k_half * 8 + 2 * t;
      query[k][half + 2 * k_half] = from != nullptr && column < head_dim
                                        ? *reinterpret_cast<const uint32_t*>(from + column)
                                        : 0;
    }
}

// A warp's 16 keys of a tile of keys, behind which its values lie: scores, of which finish(scores)
// hides or shifts some, a step of the softmax, and the weighted sums. factor: scale * log2(e).
template <int kD, typename Finish>
__device__ __forceinline__ void attend_tile(Softmax& softmax, float (&sums)[kD / 8][4],
                                            const uint32_t (&query)[kD / 16][4],
                                            const __nv_bfloat16* tile, float factor,
                                            const Finish& finish) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float scores[2][4] = {}, kept[2];
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) add_scores<kD>(scores, query[k], tile, warp * 16, k * 16);
  finish(scores);
  take_scores(softmax, scores, factor, kept);
  scale_sums(sums, kept);
  add_values<kD>(sums, scores, tile + Sizes<kD>::kTile, warp * 16);
}

// A warp's share of the keys of a row, in units of log2.
struct Share {
  float largest, total;
};

__device__ __forceinline__ void leave_share(Share (&shares)[kWarps][kRows], Softmax& softmax,
                                            float factor) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  add_lanes(softmax);
  if (lane % 4 == 0)
    for (int half = 0; half < 2; ++half)
      shares[warp][lane / 4 + 8 * half] = {softmax.largest[half] * factor, softmax.total[half]};
}

// Puts the shares of warps together: weighted sums in shared memory, (kRows, kD).
template <int kD>
__device__ __forceinline__ void add_warps(float* sums, const float (&own)[kD / 8][4],
                                          const Share (&shares)[kWarps][kRows]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  for (int active = 0; active < kWarps; ++active) {
    if (active == warp) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = g + 8 * half;
        float largest = -INFINITY;
        for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shares[w][row].largest);
        const float part =
            largest == -INFINITY ? 0.0f : exp2_fast(shares[warp][row].largest - largest);
#pragma unroll
        for (int n = 0; n < kD / 8; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& sum = sums[row * kD + n * 8 + 2 * t + i];
            sum = (active == 0 ? 0.0f : sum) + own[n][2 * half + i] * part;
          }
      }
    }
    __syncthreads();
  }
}

// Writes what the block leaves of the first n_rows rows; part_of(row) is the number of a row's
// part.
template <int kD, typename PartOf>
__device__ __forceinline__ void write_parts(const RowParts& parts, const float* sums,
                                            const Share (&shares)[kWarps][kRows], int head_dim,
                                            int n_rows, const PartOf& part_of) {
  for (int i = static_cast<int>(threadIdx.x); i < n_rows * head_dim; i += kThreads) {
    const int row = i / head_dim, column = i % head_dim;
    parts.sums[part_of(row) * head_dim + column] = sums[row * kD + column];
  }
  if (threadIdx.x < n_rows) {
    const int row = static_cast<int>(threadIdx.x);
    float largest = -INFINITY, total = 0;
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shares[w][row].largest);
    for (int w = 0; w < kWarps && largest != -INFINITY; ++w)
      total += shares[w][row].total * exp2_fast(shares[w][row].largest - largest);
    parts.largest[part_of(row)] = largest;
    parts.total[part_of(row)] = total;
  }
}

// How many blocks share the keys of a tile: as many as there is room for at one time where so many
// tiles of rows are attended to, unless that leaves less than a few tiles of keys to each.
template <auto kKernel, int kBytes>
int64_t splits_of(Context& context, int64_t n_row_tiles, int64_t n_keys) {
  static const int per_multiprocessor = [] {
    check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
          "attention's shared memory");
    int blocks = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kKernel, kThreads, kBytes),
          "attention's occupancy");
    return blocks;
  }();
  const int64_t resident = int64_t{per_multiprocessor} * context.multiprocessors();
  const int64_t most = std::max<int64_t>(ceil_div(n_keys, 4 * kKeys), 1);
  return std::clamp<int64_t>(resident / n_row_tiles, 1, most);
}

}  // namespace sluice::impl::cuda::dense::few
