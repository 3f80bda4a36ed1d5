#include "select/inherit.h"

#include <algorithm>
#include <cmath>

namespace sluice {

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

void extend_from(Selector& selector, const Selector* above, const ConstTensor& rows,
                 const ConstTensor& residual) {
  SelectArgs args{.rows = rows, .residual = residual, .inherited = {}};
  if (inherits(selector.spec().rule)) {
    SLUICE_CHECK(above != nullptr);
    for (const double tau : selector.spec().taus)
      args.inherited.emplace_back(*above, nearest_set(above->spec().taus, tau));
  }
  selector.extend(args);
}

}  // namespace sluice
