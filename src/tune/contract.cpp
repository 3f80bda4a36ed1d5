#include "tune/contract.h"

#include <algorithm>
#include <cmath>

namespace sluice::impl {
namespace {

// What a lost needle uses up: too much, so that half the budget is tried next.
constexpr double kLostNeedle = 2;

}  // namespace

double Contract::excess(const Loss& loss, double n_errors) const {
  const double kl = loss.kl.mean() + n_errors * loss.kl.standard_error();
  const double log_ratio = loss.log_ratio.mean() + n_errors * loss.log_ratio.standard_error();
  const auto used = [](double found, double most) {
    if (std::isinf(most)) return 0.0;
    if (found <= 0) return 0.0;
    return most > 0 ? found / most : std::numeric_limits<double>::infinity();
  };
  return std::max({loss.needles.lost() > 0 ? kLostNeedle : 0.0, used(kl, max_kl),
                   used(log_ratio, std::log(max_ppl_ratio)),
                   used(loss.kl_values.quantile(0.99), max_kl_p99),
                   used(loss.kl_values.quantile(0.999), max_kl_p999)});
}

double Contract::first_budget() const {
  return std::min(max_kl, std::isinf(max_ppl_ratio) ? max_kl : std::log(max_ppl_ratio));
}

}  // namespace sluice::impl
