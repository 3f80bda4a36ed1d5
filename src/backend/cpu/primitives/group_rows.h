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
  // Rows of the next pass, (n_next, d), at most n: a kernel may prefetch them.
  const T* next = nullptr;
  int64_t n_next = 0;
};

// scores[i][j] = dot(queries[i], rows[j]); queries is (n_queries, d).
void dot_group(const GroupRows<float>& group, const float* queries);
void dot_group(const GroupRows<BFloat16>& group, const float* queries);
void dot_group(const GroupRows<int8_t>& group, const float* queries);
// sums[i] += sum_j scores[i][j] * rows[j]; sums is (n_queries, d).
void mix_group(const GroupRows<float>& group, float* sums);
void mix_group(const GroupRows<BFloat16>& group, float* sums);
void mix_group(const GroupRows<int8_t>& group, float* sums);

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
const NativeGroup* native_group_arm();     // Arm FEAT_BF16
const NativeGroup* native_group_avx512();  // x86 AVX512_BF16

// Rows of int8 in 8-bit instructions of this CPU. Queries and weights are
// integers of 15 and 16 bits here, relative to the largest of a query, and of a block's weights:
// two terms of 8 bits, whose products with the rows are exact. d is a multiple of kDim, at most
// kMostDim; scores have room for a multiple of kRows of each query.
struct NativeInt8Group {
  static constexpr int64_t kDim = 16, kMostDim = 512, kRows = 8, kMostRows = 128;
  static constexpr int32_t kMostQuery = 16319, kMostWeight = 65535;
  // from (n_queries, d) to 2 * n_queries * d terms; scales: (n_queries).
  void (*pack)(const float* from, int64_t n_queries, int64_t d, int8_t* to, float* scales);
  struct Queries {
    const int8_t* terms;
    const float* scales;
  };
  // Scores of rows that are multiplied by row_scales (n).
  void (*dot)(const GroupRows<int8_t>& group, const Queries& queries, const float* row_scales);
  // Of at most kMostRows rows.
  void (*mix)(const GroupRows<int8_t>& group, const float* row_scales, float* sums);
};
// Null where this CPU or this build has not got the instructions. Integers are summed exactly, so
// both give the same bits.
const NativeInt8Group* int8_group_i8mm();     // Arm FEAT_I8MM
const NativeInt8Group* int8_group_dotprod();  // Arm FEAT_DotProd

}  // namespace sluice::impl::cpu::primitives
