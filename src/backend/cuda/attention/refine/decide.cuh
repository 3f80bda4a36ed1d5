// Refined attention: how query rows decide what to open. The rule is RefineEstimate (refine.h), in
// base 2.
//
// A warp has 16 query rows. Lane (g, t) = (lane / 4, lane % 4) holds the scores of rows g and g + 8
// for pages 8 n + 2 t + i of a tile, n < kN and i < 2, as tensor cores leave them. Its decisions
// about them are one word per row, with bit 2 n + i.

#pragma once

#include "backend/cuda/attention/dense/tile.cuh"
#include "backend/cuda/attention/refine/estimate.cuh"
#include "backend/cuda/attention/refine/work.cuh"

namespace sluice::impl::cuda::refine {

using namespace dense;

constexpr float kLog2Page = 4;  // log2(kPage)

// The statistics by which queries decide about the pages of a tile lie here, in shared memory.
// Columns that are no page have zeros.
template <int kKeys>
struct PageStats {
  alignas(16) uint4 spreads[kKeys];
  alignas(16) float rhos[kKeys];

  // Puts the statistics of `page` into a column, or zeros where it is not before `end`.
  __device__ void load(const CacheView& cache, int64_t kv_head, int column, int page, int end) {
    const int64_t at = kv_head * cache.n_pages + page;
    spreads[column] = page < end ? cache.spreads[at] : make_uint4(0, 0, 0, 0);
    rhos[column] = page < end ? cache.rhos[at] : 0.0f;
  }
};

// log2 of a sum over the columns that this lane has seen, for its two rows.
struct LogSum {
  float largest[2], total[2];

  // factor: scale * log2(e).
  __device__ LogSum(const Softmax& near, float factor) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      largest[half] = near.largest[half] * factor;
      total[half] = near.total[half];
    }
  }
  // Adds 2^exponents.
  template <int kN>
  __device__ void add(const float (&exponents)[kN][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float now = largest[half];
#pragma unroll
      for (int n = 0; n < kN; ++n)
        now = fmaxf(now, fmaxf(exponents[n][2 * half], exponents[n][2 * half + 1]));
      const float shift = now == -INFINITY ? 0.0f : now;
      float sum = total[half] * exp2_fast(largest[half] - shift);
#pragma unroll
      for (int n = 0; n < kN; ++n)
        sum += exp2_fast(exponents[n][2 * half] - shift) +
               exp2_fast(exponents[n][2 * half + 1] - shift);
      largest[half] = now;
      total[half] = sum;
    }
  }
  // Over all lanes' columns.
  __device__ float all(int half) const {
    float most = largest[half];
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    float sum = total[half] * exp2_fast(largest[half] - most);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    return most + log2f(sum);
  }
};

// The estimates of a lane's two rows of queries. query(row, dimension): of the head, row g and g +
// 8 of the warp's 16.
struct RowEstimates {
  float factor;         // scale * log2(e)
  float offset[2];      // log2(kPage), less the normaliser
  uint32_t squares[2];  // of groups 2t and 2t + 1, a pair of bf16: a left operand

  template <typename QueryAt>
  __device__ RowEstimates(const RefineView& view, int kv_head, const QueryAt& query) {
    factor = view.scale * kLog2E;
    offset[0] = offset[1] = kLog2Page;
    const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
    const DeviceGroups groups(view, kv_head);
    float sums[2][2] = {};
#pragma unroll
    for (int group = 0; group < 2; ++group)
      for (int i = groups.begins[2 * t + group]; i < groups.begins[2 * t + group + 1]; ++i) {
        const int d = groups.dims[i];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float x = query(g + 8 * half, d);
          sums[half][group] = fmaf(x, x, sums[half][group]);
        }
      }
    const float scale2 = view.scale * view.scale;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      squares[half] = narrowed(scale2 * sums[half][0], scale2 * sums[half][1]);
  }
  __device__ void set_normaliser(const LogSum& sum) {
#pragma unroll
    for (int half = 0; half < 2; ++half) offset[half] -= sum.all(half);
  }
  // to[0..1] become the variances of the scores of row g for pages 8 n + 2 t and the next, to[2..3]
  // those of row g + 8.
  template <int kKeys>
  __device__ void variances(float (&to)[4], const PageStats<kKeys>& stats, int n) const {
    to[0] = to[1] = to[2] = to[3] = 0;
    const auto* pairs = reinterpret_cast<const uint32_t*>(stats.spreads);
    mma_bf16_8(to, squares, pairs[n * 32 + static_cast<int>(threadIdx.x) % 32]);
  }
};

// Masks a tile of means and exact keys. Rows see the means below `end` and the keys of columns
// [exact_begin, exact_end), which count as one key each: log_page is taken off, for it is added to
// all that is seen. log_page: log(kPage) over the scale of scores.
template <int kN>
__device__ void mask_means(float (&scores)[kN][4], const int (&end)[2], int exact_begin,
                           int exact_end, float log_page) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int begin = exact_begin - 2 * t;
  const auto n_exact = static_cast<unsigned>(exact_end - exact_begin);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int means_end = end[half] - 2 * t;
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = n * 8 + i;
        float& score = scores[n][2 * half + i];
        if (column >= means_end)
          score = static_cast<unsigned>(column - begin) < n_exact ? score - log_page : -INFINITY;
      }
  }
}

// Scores become exponents of what pages add to the normaliser.
template <int kN>
__device__ void as_masses(float (&scores)[kN][4], const RowEstimates& rows,
                          const PageStats<8 * kN>& stats) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    float variance[4];
    rows.variances(variance, stats, n);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float excess = excess_of(variance[i], sqrt_fast(variance[i]));
      scores[n][i] = fmaf(scores[n][i], rows.factor, fmaf(excess, kLog2E, kLog2Page));
    }
  }
}

// Which pages the rows ask to open: those that are estimated at delta or more.
template <int kN>
__device__ void ask(uint32_t (&asked)[2], const float (&scores)[kN][4], const RowEstimates& rows,
                    const PageStats<8 * kN>& stats, float delta) {
  const auto* rhos = reinterpret_cast<const float2*>(stats.rhos) + threadIdx.x % 4;
  asked[0] = asked[1] = 0;
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    float variance[4];
    rows.variances(variance, stats, n);
    const float2 rho = rhos[4 * n];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int half = i / 2;
      const float sigma = sqrt_fast(variance[i]), excess = excess_of(variance[i], sigma);
      const float mass =
          exp2_fast(fmaf(scores[n][i], rows.factor, fmaf(excess, kLog2E, rows.offset[half])));
      const float error = error_of(sigma, excess, i % 2 == 0 ? rho.x : rho.y);
      if (mass * error >= delta) asked[half] |= 1u << (2 * n + i % 2);
    }
  }
}

// The bits of columns below `end`.
template <int kN>
__device__ uint32_t columns_below(int end) {
  const int t = static_cast<int>(threadIdx.x) % 4, inside = min(max(end, 0), 8 * kN);
  const int bits = inside / 8 * 2 + min(max(inside % 8 - 2 * t, 0), 2);
  return bits >= 32 ? 0xffffffffu : (1u << bits) - 1;
}

// Every row of a tile opens what any of its rows asks for. `words`: (kItemWarps, 4), for tiles of
// more than one warp. Consecutive calls alternate between two of them.
__device__ inline void spread(uint32_t (&asked)[2], int tile, int warp,
                              uint32_t (&words)[kItemWarps][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int rows = 2; rows <= 8 && rows <= tile; rows *= 2)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      asked[half] |= __shfl_xor_sync(0xffffffffu, asked[half], 2 * rows);
  if (tile < 16) return;
  asked[0] |= asked[1];
  if (tile > 16) {
    const int n = tile / 16, first = warp / n * n;
    if (lane < 4) words[warp][lane] = asked[0];
    asm volatile("bar.sync %0, %1;\n" ::"r"(1 + warp / n), "r"(2 * tile) : "memory");
    for (int i = 0; i < n; ++i) asked[0] |= words[first + i][lane % 4];
  }
  asked[1] = asked[0];
}

// The rows of a warp that open a page are 16 bits: this one and the next are those of rows g and
// g + 8.
__device__ inline int row_bit() {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  return 4 * (g % 4) + g / 4 * 2;
}

// Writes the rows that open each page of a tile. opened: (8 kN) of this warp.
template <int kN>
__device__ void store_opened(uint16_t* opened, const uint32_t (&asked)[2], int tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  auto* pairs = reinterpret_cast<uint32_t*>(opened) + t;  // of pages 8 n + 2 t and the next
  constexpr int kShare = kN / 8;                          // n that a lane writes
  if (tile >= 16) {                                       // all rows alike
#pragma unroll
    for (int j = 0; j < kShare; ++j) {
      const int n = g * kShare + j;
      const uint32_t bits = asked[0] >> (2 * n);
      pairs[4 * n] = (bits & 1 ? 0xffffu : 0u) | (bits & 2 ? 0xffff0000u : 0u);
    }
    return;
  }
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    uint32_t pair = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t bit = 1u << (2 * n + i);
      const uint32_t low = __ballot_sync(0xffffffffu, (asked[0] & bit) != 0);
      const uint32_t high = __ballot_sync(0xffffffffu, (asked[1] & bit) != 0);
      const uint32_t rows = (low >> t & 0x11111111u) | (high >> t & 0x11111111u) << 1;
      pair |= ((rows & 0xffffu) | rows >> 16 << 2) << (16 * i);
    }
    if (g == n / kShare) pairs[4 * n] = pair;
  }
}

// Scores of means: opened pages weigh nothing, the others what kPage keys do.
template <int kN>
__device__ void close_means(float (&scores)[kN][4], const uint32_t (&opened)[2], float log_page) {
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      scores[n][i] = opened[i / 2] >> (2 * n + i % 2) & 1 ? -INFINITY : scores[n][i] + log_page;
}

// Scores of members: rows see the pages that they have opened. opened: (kN / 2) of this warp, one
// per page of the tile.
template <int kN>
__device__ void mask_members(float (&scores)[kN][4], const uint16_t* opened) {
  const int bit = row_bit();
#pragma unroll
  for (int pair = 0; pair < kN / 4; ++pair) {  // of pages
    const uint32_t rows = reinterpret_cast<const uint32_t*>(opened)[pair] >> bit;
#pragma unroll
    for (int n = 4 * pair; n < 4 * pair + 4; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if ((rows >> (n % 4 / 2 * 16 + i / 2) & 1) == 0) scores[n][i] = -INFINITY;
  }
}

// Adds what the rows of a warp have opened to the count of their segment of positions. n: members,
// of this lane's rows and columns.
__device__ inline void count_opened(const RefineView& view, const Item& item, int warp, int n) {
  const int all = __reduce_add_sync(0xffffffffu, n);
  if (threadIdx.x % 32 != 0 || all == 0) return;
  // 16 rows from a multiple of 16 on are in one segment, which is whole pages.
  const int segment = (item.begin + warp * 16) / static_cast<int>(view.segment);
  atomicAdd(view.opened + int64_t{segment} * view.n_heads + item.head,
            static_cast<unsigned long long>(all));
}

}  // namespace sluice::impl::cuda::refine
