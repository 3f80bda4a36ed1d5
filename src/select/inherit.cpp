#include "select/inherit.h"

#include <algorithm>
#include <cmath>

namespace sluice::impl {

size_t nearest_set(std::span<const double> taus, double tau) {
  SLUICE_CHECK(!taus.empty());
  size_t best = 0;
  for (size_t i = 1; i < taus.size(); ++i) {
    const double distance = std::abs(taus[i] - tau), least = std::abs(taus[best] - tau);
    if (distance < least || (distance == least && taus[i] < taus[best])) best = i;
  }
  return best;
}

size_t index_of_tau(std::span<const double> taus, double tau) {
  const auto at = std::find(taus.begin(), taus.end(), tau);
  SLUICE_CHECK(at != taus.end());
  return static_cast<size_t>(at - taus.begin());
}

TokenRows TokenRows::from(int64_t begin, int64_t count) const {
  const auto part = [&](const ConstTensor& of) {
    return of.defined() ? of.rows_from(begin, count) : of;
  };
  return {part(rows), part(residual), part(row_squares), part(residual_squares)};
}

void extend_from(Selector& selector, const Selector* above, const TokenRows& tokens) {
  SelectArgs args{.rows = tokens.rows,
                  .residual = tokens.residual,
                  .inherited = {},
                  .row_squares = tokens.row_squares,
                  .residual_squares = tokens.residual_squares};
  if (inherits(selector.spec().rule)) {
    SLUICE_CHECK(above != nullptr);
    for (const double tau : selector.spec().taus)
      args.inherited.emplace_back(*above, nearest_set(above->spec().taus, tau));
  }
  selector.extend(args);
}

}  // namespace sluice::impl
