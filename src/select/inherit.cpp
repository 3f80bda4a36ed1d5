#include "select/inherit.h"

#include <algorithm>
#include <cmath>

namespace sluice {

double nearest_tau(std::span<const double> taus, double tau) {
  SLUICE_CHECK(!taus.empty());
  double best = taus[0];
  for (const double one : taus) {
    const double distance = std::abs(one - tau), least = std::abs(best - tau);
    if (distance < least || (distance == least && one < best)) best = one;
  }
  return best;
}

size_t nearest_set(std::span<const TokenSet> sets, double tau) {
  std::vector<double> taus;
  for (const TokenSet& set : sets) taus.push_back(set.tau);
  return index_of_tau(taus, nearest_tau(taus, tau));
}

size_t index_of_tau(std::span<const double> taus, double tau) {
  const auto at = std::find(taus.begin(), taus.end(), tau);
  SLUICE_CHECK(at != taus.end());
  return static_cast<size_t>(at - taus.begin());
}

std::vector<uint8_t> membership(const TokenSet& set, int64_t first, int64_t n_tokens) {
  SLUICE_CHECK(first >= 0 && first + n_tokens <= set.n_tokens());
  std::vector<uint8_t> flags(static_cast<size_t>(n_tokens));
  for (int64_t i = 0; i < n_tokens; ++i)
    flags[static_cast<size_t>(i)] = set.in_set(first + i) ? 1 : 0;
  return flags;
}

void extend_from(Selector& selector, std::span<const TokenSet> above, const ConstTensor& rows,
                 const ConstTensor& residual) {
  SelectArgs args{.rows = rows, .residual = residual, .inherited = {}};
  std::vector<std::vector<uint8_t>> flags;
  if (inherits(selector.spec().rule)) {
    const int64_t first = selector.sets().empty() ? 0 : selector.sets()[0].n_tokens();
    for (const double tau : selector.spec().taus)
      flags.push_back(membership(above[nearest_set(above, tau)], first, rows.rows()));
    for (const auto& set : flags) args.inherited.emplace_back(set);
  }
  selector.extend(args);
}

}  // namespace sluice
