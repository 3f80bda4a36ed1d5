// Choosing blocks of keys by a threshold on their mass, for the baselines that do.

#pragma once

#include <vector>

#include "backend/cpu/attention/baseline/chooser.h"

namespace sluice::impl::cpu::baseline {

// Blocks of kBaselineBlock tokens, the last one cut off or not.
inline int64_t n_blocks(int64_t n_tokens) {
  return (n_tokens + kBaselineBlock - 1) / kBaselineBlock;
}

// The fewest blocks with a share `keep` of all mass, the first and the last (the queries' own)
// among them. mass: (blocks up to the queries' own), 0 or more; what is no number counts as 0. Of
// equal blocks the earlier.
void fewest_blocks(std::vector<double> mass, double keep, std::vector<KeyRange>& read);

}  // namespace sluice::impl::cpu::baseline
