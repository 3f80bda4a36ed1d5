#include "eval/audit/audit.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace sluice::impl {

// The expansion of Cornish and Fisher around the normal quantile; exact values where it is not good
// enough.
double student_quantile(int64_t degrees_of_freedom) {
  SLUICE_CHECK(degrees_of_freedom > 0);
  constexpr double kFew[] = {12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469};
  if (degrees_of_freedom <= std::ssize(kFew))
    return kFew[static_cast<size_t>(degrees_of_freedom - 1)];
  constexpr double z = 1.959964, z2 = z * z;
  const double n = 1.0 / static_cast<double>(degrees_of_freedom);
  const double first = z * (z2 + 1) / 4;
  const double second = z * ((5 * z2 + 16) * z2 + 3) / 96;
  const double third = z * (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384;
  return z + n * (first + n * (second + n * third));
}

AuditInterval Audit::interval() const {
  const auto n = static_cast<double>(samples_.size());
  AuditInterval out{.n_samples = n_samples(), .high = std::numeric_limits<double>::infinity()};
  for (const double x : samples_) out.mean += x / n;
  if (samples_.size() < 2) return out;
  double squares = 0, cubes = 0;
  for (const double x : samples_) {
    const double d = x - out.mean;
    squares += d * d;
    cubes += d * d * d;
  }
  const double deviation = std::sqrt(squares / (n - 1)), population = std::sqrt(squares / n);
  const double skew = population > 0 ? cubes / n / std::pow(population, 3) : 0;
  // Of (mean - true mean) / deviation.
  const auto from_quantile = [&](double quantile) {
    const double t = quantile / std::sqrt(n);
    if (std::abs(skew) < 1e-6) return t;
    return 3 / skew * (std::cbrt(1 + skew * (t - skew / (6 * n))) - 1);
  };
  const double quantile = student_quantile(out.n_samples - 1);
  out.low = std::clamp(out.mean - deviation * from_quantile(quantile), 0.0, out.mean);
  out.high = std::max(out.mean, out.mean - deviation * from_quantile(-quantile));
  return out;
}

bool Audit::in_danger(double max_kl) const {
  if (n_samples() < kLeastSamples) return false;
  const AuditInterval found = interval();
  return found.high > max_kl && found.low > max_kl / 2;
}

}  // namespace sluice::impl
