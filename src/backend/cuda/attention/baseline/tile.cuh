// The scores of some queries against a page of keys, in shared memory and f32.

#pragma once

#include "backend/cuda/attention/baseline/kernels.h"
#include "backend/cuda/primitives/element.cuh"

namespace sluice::impl::cuda::baseline {

constexpr int kThreads = 256;
constexpr int kTile = 32;  // queries

// Element i of a row of `rows`, which hold head_dim elements each.
__device__ inline float element(const std::byte* rows, bool bf16, int64_t i) {
  return bf16 ? __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(rows)[i])
              : reinterpret_cast<const float*>(rows)[i];
}

// Element d of the key or value at t. rows: PassView::keys or values.
__device__ inline float cached(const PassView& pass, const std::byte* rows, int64_t kv_head,
                               int64_t t, int64_t d) {
  return element(rows, pass.bf16, (kv_head * pass.capacity + t) * pass.head_dim + d);
}
__device__ inline float query_element(const PassView& pass, int64_t row, int64_t head, int64_t d) {
  return element(pass.queries, pass.bf16, row * pass.query_stride + head * pass.head_dim + d);
}

// Queries of one head that follow each other. Rows have one element more than head_dim, so that
// neighbours lie in different banks.
struct QueryTile {
  const PassView& pass;
  int64_t head, row;  // of the pass
  int n;              // queries
  float* queries;     // (kTile, stride())
  float* keys;        // (kPage, stride())
  float* scores;      // (kTile, kPage): -inf where a query does not see a key

  static __host__ __device__ int64_t n_floats(int64_t head_dim) {
    return (kTile + kPage) * (head_dim + 1) + kTile * kPage;
  }
  __device__ QueryTile(const PassView& of, int64_t of_head, int64_t of_row, int64_t end,
                       float* shared)
      : pass(of),
        head(of_head),
        row(of_row),
        n(static_cast<int>(min(int64_t{kTile}, end - of_row))),
        queries(shared),
        keys(queries + kTile * stride()),
        scores(keys + kPage * stride()) {
    for (int i = threadIdx.x; i < n * pass.head_dim; i += kThreads) {
      const int64_t q = i / pass.head_dim, d = i % pass.head_dim;
      queries[q * stride() + d] = pass.scale * query_element(pass, row + q, head, d);
    }
    __syncthreads();
  }
  __device__ int64_t stride() const { return pass.head_dim + 1; }
  __device__ int64_t position(int query) const { return pass.first + row + query; }

  // rows: PassView::keys or values. All threads; a barrier before and after.
  __device__ void load_page(const std::byte* rows, int64_t page, float* to) const {
    const int64_t kv_head = pass.kv_head(head), last = min((page + 1) * kPage, pass.end());
    __syncthreads();
    for (int64_t i = threadIdx.x; i < (last - page * kPage) * pass.head_dim; i += kThreads) {
      const int64_t key = i / pass.head_dim, d = i % pass.head_dim;
      to[key * stride() + d] = cached(pass, rows, kv_head, page * kPage + key, d);
    }
    __syncthreads();
  }

  // sees(query, key): whether the query reads the key at that position, which it does not follow.
  template <typename Sees>
  __device__ void score_page(int64_t page, const Sees& sees) const {
    load_page(pass.keys, page, keys);
    for (int i = threadIdx.x; i < kTile * kPage; i += kThreads) {
      const int query = i / kPage, key = i % kPage;
      const int64_t at = page * kPage + key;
      float score = -INFINITY;
      if (query < n && at <= position(query) && sees(query, at)) {
        score = 0;
        for (int64_t d = 0; d < pass.head_dim; ++d)
          score += queries[query * stride() + d] * keys[key * stride() + d];
      }
      scores[i] = score;
    }
    __syncthreads();
  }
};

}  // namespace sluice::impl::cuda::baseline
