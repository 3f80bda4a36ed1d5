// Groups the tokens of a closed segment by their keys, in f32. docs/algorithm.md, section 7.

#pragma once

#include <vector>

#include "backend/refine.h"

namespace sluice::impl::cpu::refine {

struct Grouping {
  std::vector<int32_t> order;   // (n_tokens) rows, those of a cluster side by side and ascending
  std::vector<int32_t> begins;  // (n_clusters + 1) where each cluster begins in `order`
};

// keys (n, dim); page divides n.
Grouping cluster_keys(const float* keys, int64_t n, int64_t dim, int64_t page, ClusterKind kind);

// out (dim) = the mean of n rows of (…, dim).
void mean_rows(const float* rows, int64_t n, int64_t dim, float* out);

}  // namespace sluice::impl::cpu::refine
