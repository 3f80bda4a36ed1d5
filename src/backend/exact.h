// The sums that decide pairs of tokens, docs/algorithm.md section 1. Every backend falls back to
// these for pairs within its own error of the threshold, so sets are the same everywhere.

#pragma once

#include <vector>

#include "core/tensor.h"

namespace sluice::impl {

// 1 / norm of a row; 0 for a row of zeros, and for one without a finite norm, which counts as a
// row of zeros. Squares are exact in float64 and summed in index order.
double inverse_norm(const ConstTensor& rows, int64_t row);

// Element of a unit row: float32, as the pair decision wants it.
inline float unit_element(float x, double inverse_norm) {
  return static_cast<float>(double{x} * inverse_norm);
}

// A row and its inverse norm.
struct UnitRow {
  ConstTensor rows;
  int64_t row;
  double inverse_norm;
};
// Float64 sum, in index order, of products of unit elements.
double exact_cosine(const UnitRow& a, const UnitRow& b);

// Tells exempt tokens of one sequence, in order: the first `sinks`, and those whose norm is above
// `ratio` times the median norm of tokens sinks ... min(t, sinks + 255), t included.
class ExemptTokens {
 public:
  ExemptTokens(int64_t sinks, double ratio) : sinks_(sinks), ratio_(ratio) {}
  bool next(double norm);  // whether the token that follows is exempt
  bool needs_norms() const { return ratio_ > 0; }

 private:
  int64_t sinks_;
  double ratio_;
  int64_t n_seen_ = 0;
  std::vector<double> sorted_;  // norms after the sinks, at most kMedianTokens
};

}  // namespace sluice::impl
