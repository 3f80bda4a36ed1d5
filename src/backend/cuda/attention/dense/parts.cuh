// What the blocks that share the keys of a row, or of a head of one query, leave of it, and how
// that is put together.

#pragma once

#include "backend/cuda/attention/dense/tile.cuh"

namespace sluice::impl::cuda::dense {

// A softmax over some keys: the weighted sum of one column. largest is that of scores times
// log2(e).
struct ColumnSum {
  float largest = -INFINITY, total = 0, sum = 0;
};

// What blocks leave of rows that are put together by another kernel.
struct RowParts {
  float* sums;     // (n_parts, head_dim)
  float* largest;  // (n_parts) score, times scale and log2(e)
  float* total;    // (n_parts) of weights

  // A column of a row whose parts are [first, first + n).
  __device__ __forceinline__ ColumnSum together(int64_t first, int n, int64_t head_dim,
                                                int64_t column) const {
    ColumnSum all;
    for (int i = 0; i < n; ++i) all.largest = fmaxf(all.largest, largest[first + i]);
    for (int i = 0; i < n; ++i) {
      const float part = exp2_fast(largest[first + i] - all.largest);
      all.total += total[first + i] * part;
      all.sum += sums[(first + i) * head_dim + column] * part;
    }
    return all;
  }
};

// What a block leaves of a head. largest is that of scores times log2(e).
struct HeadParts {
  float* sums;     // (n_batch, n_heads, n_splits, head_dim)
  float* largest;  // (n_batch, n_heads, n_splits)
  float* total;    // the same shape
  int32_t* done;   // (n_batch, n_heads) blocks, zero before and after
  int32_t n_splits;

  // A column of the head whose parts are all there, from what other blocks wrote. Many loads at
  // a time, to hide their latency.
  __device__ float together(int64_t head, int64_t column, int64_t head_dim) const {
    constexpr int kAtOnce = 12;
    float largest_so_far = -INFINITY, all = 0, sum = 0;
#pragma unroll 1
    for (int first = 0; first < n_splits; first += kAtOnce) {
      float scores[kAtOnce], weights[kAtOnce], values[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const bool exists = first + i < n_splits;
        const int64_t part = head * n_splits + (exists ? first + i : 0);
        scores[i] = exists ? __ldcg(largest + part) : -INFINITY;
        weights[i] = __ldcg(total + part);
        values[i] = __ldcg(sums + part * head_dim + column);
      }
      float larger = largest_so_far;
#pragma unroll
      for (const float score : scores) larger = fmaxf(larger, score);
      if (larger == -INFINITY) continue;
      const float kept = exp2_fast(largest_so_far - larger);
      all *= kept;
      sum *= kept;
      largest_so_far = larger;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float part = exp2_fast(scores[i] - larger);
        all += weights[i] * part;
        sum += values[i] * part;
      }
    }
    return sum / all;
  }
};

// The same of a block in shared memory, where the blocks of a head are a cluster and read each
// other's: compute capability 9.0 on.
constexpr int kMostClustered = 8;  // blocks
struct ClusterPart {
  float sums[256], largest, total;

  // By all threads of all blocks: until all have come here.
  __device__ static void meet() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "barrier.cluster.arrive.release;\n"
        "barrier.cluster.wait.acquire;\n" ::
            : "memory");
#endif
  }
  // This one's number is read from another block's.
  __device__ static float read(const float& own, int block) {
    float value = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .b32 at;\n"
        "mapa.shared::cluster.u32 at, %1, %2;\n"
        "ld.shared::cluster.f32 %0, [at];\n"
        "}\n"
        : "=f"(value)
        : "r"(shared_address(&own)), "r"(block)
        : "memory");
#endif
    return value;
  }
  __device__ float together(int column, int n_blocks) const {
    float scores[kMostClustered], weights[kMostClustered], values[kMostClustered];
    float larger = -INFINITY, all = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < kMostClustered; ++i) {
      const int block = i < n_blocks ? i : 0;
      scores[i] = i < n_blocks ? read(largest, block) : -INFINITY;
      weights[i] = read(total, block);
      values[i] = read(sums[column], block);
      larger = fmaxf(larger, scores[i]);
    }
#pragma unroll
    for (int i = 0; i < kMostClustered; ++i) {
      const float part = exp2_fast(scores[i] - larger);
      all += weights[i] * part;
      sum += values[i] * part;
    }
    return sum / all;
  }
};

}  // namespace sluice::impl::cuda::dense
