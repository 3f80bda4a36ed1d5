// Groups the tokens of a closed segment by their keys, in f32. docs/algorithm.md, section 7.

#pragma once

#include <cstdint>
#include <vector>

namespace sluice::impl::cpu::refine {

// Rows of keys (n, dim) in the order of pages, those of a page side by side and ascending; page
// divides n.
std::vector<int32_t> cluster_keys(const float* keys, int64_t n, int64_t dim, int64_t page);
// The variances of keys (n, dim) are returned by dimension, times n.
std::vector<double> variances_of(const float* keys, int64_t n, int64_t dim);

// out (dim) = the mean of n rows of (…, dim).
void mean_rows(const float* rows, int64_t n, int64_t dim, float* out);

}  // namespace sluice::impl::cpu::refine
