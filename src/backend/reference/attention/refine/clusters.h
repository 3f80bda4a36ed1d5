// Groups the tokens of a closed segment by their keys. docs/algorithm.md, section 7.

#pragma once

#include <span>
#include <vector>

#include "backend/refine.h"

namespace sluice::impl::reference::refine {

using Rows = std::span<const std::vector<double>>;  // (n_tokens, head_dim)
using Group = std::vector<size_t>;                  // rows, of one cluster

// The clusters of `keys`, whose number is a multiple of page: pages by recursive median split.
std::vector<Group> cluster_keys(Rows keys, int64_t page);
std::vector<double> variances_of(Rows keys);  // by dimension, times the number of keys

std::vector<double> mean_of(Rows rows, const Group& group);
double distance2(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace sluice::impl::reference::refine
