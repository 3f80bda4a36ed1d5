// Handing a layer's sets down to the next selected layer. docs/algorithm.md, section 2.

#pragma once

#include "backend/select.h"

namespace sluice {

// The one of some that lies nearest, ties to the smaller.
double nearest_tau(std::span<const double> taus, double tau);
// The set that `tau` inherits: that of the nearest tau.
size_t nearest_set(std::span<const TokenSet> sets, double tau);
// The place of `tau` itself, which must be among them.
size_t index_of_tau(std::span<const double> taus, double tau);

// One flag per token of a pass: whether it is in the set. Tokens [first, first + n_tokens).
std::vector<uint8_t> membership(const TokenSet& set, int64_t first, int64_t n_tokens);

// Extends a layer's selector by the tokens of a pass; `above` are the sets of the layer before,
// already extended by the same tokens, or empty at the first selected layer.
void extend_from(Selector& selector, std::span<const TokenSet> above, const ConstTensor& rows,
                 const ConstTensor& residual);

}  // namespace sluice
