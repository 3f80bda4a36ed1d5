// Handing a layer's sets down to the next selected layer. docs/algorithm.md, section 2.

#pragma once

#include "backend/select.h"

namespace sluice::impl {

// The place of the set that `tau` inherits: that of the nearest tau, ties to the smaller.
size_t nearest_set(std::span<const double> taus, double tau);
// The place of `tau` itself, which must be among them.
size_t index_of_tau(std::span<const double> taus, double tau);

// The tokens of a pass, as SelectArgs has them.
struct TokenRows {
  ConstTensor rows, residual;
  ConstTensor row_squares = {}, residual_squares = {};

  // Tokens [begin, begin + count) of these.
  TokenRows from(int64_t begin, int64_t count) const;
};

// Extends a layer's selector by the tokens of a pass; `above` is that of the layer before, already
// extended by the same tokens, or nullptr at the first selected layer.
void extend_from(Selector& selector, const Selector* above, const TokenRows& tokens);

}  // namespace sluice::impl
