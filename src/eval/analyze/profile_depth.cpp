#include "eval/analyze/profile_depth.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace sluice::impl {
namespace {

// Of two rows.
struct Pair {
  double gap;            // ||x_s - x_t||
  double least_norm;     // min(||x_s||, ||x_t||)
  double unit_distance;  // ||x̂_s - x̂_t||, from the cosine
};

Pair pair_of(const DepthRows& rows, int32_t s, size_t t) {
  const auto n = static_cast<size_t>(rows.width);
  const auto a = std::span(rows.rows).subspan(static_cast<size_t>(s) * n, n);
  const auto b = std::span(rows.rows).subspan(t * n, n);
  double aa = 0, bb = 0, ab = 0, gap = 0;
  for (size_t i = 0; i < n; ++i) {
    const double x = a[i], y = b[i];
    aa += x * x;
    bb += y * y;
    ab += x * y;
    gap += (x - y) * (x - y);
  }
  const double size = std::sqrt(aa * bb);
  return {std::sqrt(gap), std::sqrt(std::min(aa, bb)),
          size > 0 ? std::sqrt(std::max(0.0, 2 - 2 * ab / size)) : 0};
}

}  // namespace

void measure_persistence(const DepthRows& before, const DepthRows& now, const TokenSet& set,
                         SetFigures& to) {
  struct Step {
    Pair before, now;
  };
  std::vector<Step> steps;
  for (size_t t = 0; t < set.status.size(); ++t)
    if (set.status[t] == TokenStatus::kRedundant)
      steps.push_back({pair_of(before, set.owner[t], t), pair_of(now, set.owner[t], t)});
  if (steps.empty()) return;

  RunningMean ratio, parted, predicted, persists;
  double largest = 0;
  for (const Step& step : steps) {
    const bool equal = step.before.gap == 0;
    parted.add(equal && step.now.gap > 0 ? 1 : 0);  // no constant satisfies (4)
    if (equal) continue;
    ratio.add(step.now.gap / step.before.gap);
    largest = std::max(largest, step.now.gap / step.before.gap);
  }
  const double limit = std::sqrt(2.0) * set.tau;
  for (const Step& step : steps) {
    predicted.add(
        parted.mean() == 0 && largest * step.before.gap < limit * step.now.least_norm ? 1 : 0);
    persists.add(step.now.unit_distance <= limit ? 1 : 0);
  }
  if (ratio.count() > 0) {
    to.lipschitz_mean.add(ratio.mean());
    to.lipschitz_max.add(largest);
  }
  to.parted.add(parted.mean());
  to.persistence_predicted.add(predicted.mean());
  to.persistence.add(persists.mean());
}

}  // namespace sluice::impl
