// A threshold for every layer without calibration (`--tau auto`): the largest at which the layer's
// set over the first tokens is much the same as the layer before's. docs/algorithm.md, section 6.

#pragma once

#include <span>
#include <vector>

#include "backend/select.h"

namespace sluice::impl {

// The first tokens of a sequence, from which it is chosen. Their queries are answered exactly.
inline constexpr int64_t kAutoTokens = 256;
// The share of these tokens that may join or leave the set from one layer to the next.
inline constexpr double kAutoTurnover = 0.35;

// What is tried, ascending.
std::vector<double> auto_taus();

// The largest tau tried up to which, itself included, turnover is within kAutoTurnover; 0, which
// merges nothing, where the smallest is beyond. `tried` are a layer's sets over the first tokens,
// one for each of auto_taus(), each inherited from its counterpart in `above`, the layer before's.
// The first selected layer, whose `above` is empty, has no turnover and takes the smallest.
double auto_tau(std::span<const TokenSet> tried, std::span<const TokenSet> above);

}  // namespace sluice::impl
