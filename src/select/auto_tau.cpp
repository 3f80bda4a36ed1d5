#include "select/auto_tau.h"

#include "select/counters.h"

namespace sluice::impl {

// Measured on four trained models (docs/results/auto.md): the layers that cost most are those whose
// sets change most, and above 0.4 some cost too much whatever their turnover.
std::vector<double> auto_taus() { return {0.2, 0.3, 0.4}; }

double auto_tau(std::span<const TokenSet> tried, std::span<const TokenSet> above) {
  SLUICE_CHECK(!tried.empty());
  if (above.empty()) return tried.front().tau;
  SLUICE_CHECK(above.size() == tried.size());
  double tau = 0;
  for (size_t i = 0; i < tried.size(); ++i) {
    const Turnover change = turnover(above[i], tried[i]);
    const auto changed = static_cast<double>(change.additions + change.removals);
    // A set that collapsed at a smaller tau is stable again at a larger one: no reason to go on.
    if (changed > kAutoTurnover * static_cast<double>(tried[i].n_tokens())) break;
    tau = tried[i].tau;
  }
  return tau;
}

}  // namespace sluice::impl
