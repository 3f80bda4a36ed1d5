// Refined attention of one query: what its two kernels share. docs/algorithm.md, section 7.
//
// score   scores of the means, and the normaliser that decisions compare with
// attend  decides per page and query head, then one softmax over exact rows and unopened means
//
// A thread block takes a few query heads of one kv head, which share every row that it reads, and a
// share of the rows. A group of kLanes lanes holds a row, 8 columns to a lane. Scores that enter a
// softmax are in units of log2.

#pragma once

#include <type_traits>

#include "backend/cuda/attention/dense/parts.cuh"
#include "backend/cuda/attention/refine/estimate.cuh"
#include "backend/cuda/attention/refine/kernels.h"
#include "backend/cuda/runtime/dependent_launch.cuh"

namespace sluice::impl::cuda::refine::decode {

using namespace dense;

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;

// How the warps of a kernel read rows. kHeads: query heads of a block. kVector: 16 bytes at a time.
template <typename ElementType, int kLanesOfRow, int kHeadsOfBlock, bool kVectorLoads>
struct WarpTraits {
  using Element = ElementType;
  static constexpr bool kVector = kVectorLoads;
  static constexpr bool kNarrow = std::is_same_v<Element, __nv_bfloat16>;
  static constexpr int kLanes = kLanesOfRow, kHeads = kHeadsOfBlock;
  static constexpr int kAtOnce = 32 / kLanes;                // rows of one load of a warp
  static constexpr int kLoads = kNarrow && kVector ? 4 : 2;  // in flight per lane
  static constexpr int kStep = kAtOnce * kLoads;             // rows of a step of a warp
  static constexpr int kStepsOfPage = kPage / kStep;
  static constexpr int kBlocks = kHeads == 1 ? 3 : 2;  // of a multiprocessor
  static_assert(kStepsOfPage * kStep == kPage);
};

// This token's rows, (n_kv_heads, head_dim), which are not in the cache yet.
struct NextRows {
  const std::byte *keys, *values;
};

// What the kernels of a step leave to each other.
struct Step {
  float2* masses;  // (n_heads, n_splits): largest mass and sum of a share of the normaliser
  // (n_heads, n_pages): scale * q . mean, and the log of a page's estimate but for the normaliser.
  float2* scores;
  HeadParts parts;
  int group, n_chunks;  // query heads of a kv head, and the blocks that divide them
  int most_prefetched;  // means of a kv head whose values stay in L2 until attend reads them
};

// Which heads a block has: blockIdx is (split, kv head * n_chunks + chunk).
struct BlockHeads {
  int kv_head, first, n;  // query heads [first, first + n)
};
template <int kHeads>
__device__ BlockHeads block_heads(const Step& step) {
  const auto kv_head = static_cast<int>(blockIdx.y) / step.n_chunks;
  const int before = static_cast<int>(blockIdx.y) % step.n_chunks * kHeads;
  return {kv_head, kv_head * step.group + before, min(kHeads, step.group - before)};
}

// What the query at t reads of a kv head: always the pages of the sinks and those from the border
// on, and the means of the pages between.
struct Seen {
  int t;
  int n_sink_pages, near_page, n_always;
  int first_mean, end_mean;

  __device__ int always_page(int i) const {
    return i < n_sink_pages ? i : i - n_sink_pages + near_page;
  }
};
__device__ inline Seen seen_by(const RefineView& view, int64_t t, HeadKind kind) {
  const auto border = static_cast<int>(view.border(t) / kPage);
  const auto sinks = static_cast<int>(view.sinks / kPage);
  const bool skips = border > 0 && kind != HeadKind::kDense;
  const bool has_means = border > 0 && kind == HeadKind::kClusters;
  Seen seen{};
  seen.t = static_cast<int>(t);
  seen.n_sink_pages = skips ? sinks : 0;
  seen.near_page = skips ? border : 0;
  seen.n_always = seen.n_sink_pages + seen.t / kPage + 1 - seen.near_page;
  seen.first_mean = has_means ? sinks : 0;
  seen.end_mean = has_means ? border : 0;
  return seen;
}

// A kv head's rows of an array (n_kv_heads, n_rows, head_dim).
template <typename Element>
__device__ const Element* rows_of(const std::byte* array, int kv_head, int64_t n_rows,
                                  int64_t head_dim) {
  return reinterpret_cast<const Element*>(array) + kv_head * n_rows * head_dim;
}

// Eight columns of a row, as they lie in memory; zeros where there are none.
template <typename W>
class Eight {
  using Element = typename W::Element;

 public:
  __device__ void load(const Element* row, int column, int head_dim, bool exists) {
    if constexpr (W::kVector) {
      const auto* from = reinterpret_cast<const uint4*>(row + column);
#pragma unroll
      for (int i = 0; i < kWords; ++i)
        words_[i] = exists && column < head_dim ? from[i] : make_uint4(0, 0, 0, 0);
    } else {
      float values[8];
#pragma unroll
      for (int c = 0; c < 8; ++c)
        values[c] = exists && column + c < head_dim ? static_cast<float>(row[column + c]) : 0.0f;
#pragma unroll
      for (int i = 0; i < kWords; ++i)
        words_[i] =
            make_uint4(__float_as_uint(values[4 * i]), __float_as_uint(values[4 * i + 1]),
                       __float_as_uint(values[4 * i + 2]), __float_as_uint(values[4 * i + 3]));
    }
  }
  __device__ void widen(float (&to)[8]) const {
    if constexpr (kWords == 1) {
      widen_eight(words_[0], to);
    } else {
      widen_four(words_[0], to);
      widen_four(words_[1], to + 4);
    }
  }

 private:
  static constexpr int kWords = W::kVector && W::kNarrow ? 1 : 2;
  uint4 words_[kWords];
};

// The sum over the lanes of a row, in each of them.
template <int kLanes>
__device__ float row_sum(float sum) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

// The product of a row and a query, this lane's columns of which are given; in every lane of the
// row.
template <int kLanes>
__device__ float dot(const float (&query)[8], const float (&row)[8]) {
  float sum = 0;
#pragma unroll
  for (int c = 0; c < 8; ++c) sum += query[c] * row[c];
  return row_sum<kLanes>(sum);
}

// This lane's columns of the query of `head`, scaled; zeros where there is no such head.
template <typename W>
__device__ void load_query(const RefineView& view, int head, int column, bool exists,
                           float (&to)[8]) {
  const auto* queries = reinterpret_cast<const typename W::Element*>(view.queries);
  Eight<W> row;
  row.load(queries + head * view.head_dim, column, static_cast<int>(view.head_dim), exists);
  row.widen(to);
#pragma unroll
  for (float& x : to) x *= view.scale;
}

// What a lane adds to the variances of scores: lane g of a row has group g of the dimensions.
__device__ inline float spread_in(const CacheView& cache, int64_t page, int group) {
  const auto* spreads = reinterpret_cast<const __nv_bfloat16*>(cache.spreads + page);
  return group < kSpreadGroups ? __bfloat162float(spreads[group]) : 0.0f;
}

// A sum of powers of two: total * 2^largest.
struct Mass {
  float largest = -INFINITY, total = 0;

  __device__ void add(const Mass& other) {
    const float larger = fmaxf(largest, other.largest);
    if (larger == -INFINITY) return;
    total = total * exp2_fast(largest - larger) + other.total * exp2_fast(other.largest - larger);
    largest = larger;
  }
  // Those of lanes `least`, 2 `least`, ... apart.
  __device__ void add_lanes(int least) {
    for (int step = least; step < 32; step *= 2)
      add({__shfl_xor_sync(0xffffffffu, largest, step), __shfl_xor_sync(0xffffffffu, total, step)});
  }
};

}  // namespace sluice::impl::cuda::refine::decode
