// SIMD kernels for queries that share their keys: one pass over rows of keys or values serves all
// of them.

#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace sluice::impl::cpu::primitives {

// Rows of d numbers, one after another, and what up to any number of queries have to do with them.
template <typename T>
struct GroupRows {
  const T* rows;  // (n, d)
  int64_t n, d, n_queries;
  float* scores;  // (n_queries, score_stride)
  int64_t score_stride;
};

// scores[i][j] = dot(queries[i], rows[j]); queries is (n_queries, d).
void dot_group(const GroupRows<float>& group, const float* queries);
void dot_group(const GroupRows<BFloat16>& group, const float* queries);
// sums[i] += sum_j scores[i][j] * rows[j]; sums is (n_queries, d).
void mix_group(const GroupRows<float>& group, float* sums);
void mix_group(const GroupRows<BFloat16>& group, float* sums);

// The same in bf16 instructions of this CPU, or null functions. d is a multiple of kDim, scores
// have room for a multiple of kRows of each query.
struct NativeGroup {
  static constexpr int64_t kDim = 16, kRows = 8;
  // queries: packed by pack().
  void (*dot)(const GroupRows<BFloat16>& group, const BFloat16* queries);
  // weights: (n_queries, score_stride) bf16, zeros from n on up to a multiple of kRows.
  void (*mix)(const GroupRows<BFloat16>& group, const BFloat16* weights, float* sums);
  // from (n_queries, d) to packed_elements(n_queries, d).
  void (*pack)(const BFloat16* from, int64_t n_queries, int64_t d, BFloat16* to);
  static int64_t packed_elements(int64_t n_queries, int64_t d) {
    return (n_queries + 1) / 2 * 2 * d;
  }
};
const NativeGroup* native_group();

}  // namespace sluice::impl::cpu::primitives
