// Writes the pages of a settled segment: permuted rows, means, and what the statistics are made of.

#pragma once

#include "backend/cuda/attention/refine/split.cuh"

namespace sluice::cuda::refine {

struct PageSums {
  float deviation;  // squared, of the rows from their mean
  float norms;      // of the rows, where kNorms asks for them
};

// Rows of one tensor and where they go.
struct PageRows {
  ConstRowsView from;  // (n_rows, head_dim), in shared or global memory
  RowsView to;         // (capacity, head_dim) of the head
  RowsView means;      // (n_pages, head_dim) of the head
};

// Writes page `page` of the cache, whose row i is row row_of(i) of the segment. A warp's work; kN
// elements at a time.
template <int kN, bool kNorms, typename RowOf>
__device__ PageSums write_page(const PageRows& rows, int head_dim, int64_t page,
                               const RowOf& row_of) {
  float deviation = 0, norms = 0;
  for (int i = lane_id() * kN; i < head_dim; i += 32 * kN) {
    float mean[kN] = {}, x[kN];
#pragma unroll 4
    for (int row = 0; row < kPage; ++row) {
      load<kN>(rows.from, row_of(row), i, x);
      store<kN>(rows.to, page * kPage + row, i, x);
#pragma unroll
      for (int j = 0; j < kN; ++j) mean[j] += x[j];
    }
#pragma unroll
    for (int j = 0; j < kN; ++j) mean[j] *= 1.0f / kPage;
    store<kN>(rows.means, page, i, mean);
#pragma unroll 4
    for (int row = 0; row < kPage; ++row) {
      load<kN>(rows.from, row_of(row), i, x);
#pragma unroll
      for (int j = 0; j < kN; ++j) deviation += (x[j] - mean[j]) * (x[j] - mean[j]);
    }
  }
#pragma unroll 4
  for (int row = 0; kNorms && row < kPage; ++row) {
    float square = 0, x[kN];
    for (int i = lane_id() * kN; i < head_dim; i += 32 * kN) {
      load<kN>(rows.from, row_of(row), i, x);
#pragma unroll
      for (int j = 0; j < kN; ++j) square += x[j] * x[j];
    }
    norms += sqrtf(warp_sum(square));
  }
  return {warp_sum(deviation), norms};
}

}  // namespace sluice::cuda::refine
