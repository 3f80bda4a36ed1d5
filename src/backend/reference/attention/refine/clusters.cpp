#include "backend/reference/attention/refine/clusters.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/dtype.h"
#include "core/error.h"

namespace sluice::impl::reference::refine {
namespace {

// The direction in which a group of keys is widest: power steps on the covariance from the key that
// is furthest from the mean. Zeros where all keys are equal.
std::vector<double> leading_direction(Rows keys, const Group& group) {
  const std::vector<double> mean = mean_of(keys, group);
  size_t furthest = group[0];
  for (const size_t i : group)
    if (distance2(keys[i], mean) > distance2(keys[furthest], mean)) furthest = i;
  std::vector<double> direction(mean.size());
  for (size_t d = 0; d < mean.size(); ++d) direction[d] = keys[furthest][d] - mean[d];
  for (int step = 0; step < kPowerSteps; ++step) {
    const double norm =
        std::sqrt(std::inner_product(direction.begin(), direction.end(), direction.begin(), 0.0));
    if (norm == 0) return direction;
    std::vector<double> next(mean.size());
    for (const size_t i : group) {
      double along = 0;
      for (size_t d = 0; d < mean.size(); ++d)
        along += (keys[i][d] - mean[d]) * direction[d] / norm;
      for (size_t d = 0; d < mean.size(); ++d) next[d] += along * (keys[i][d] - mean[d]);
    }
    direction = next;
  }
  return direction;
}

// The kSplitDims dimensions in which the keys vary most, rounded to bf16; of equal ones the first.
std::vector<std::vector<double>> widest_dims(Rows keys) {
  std::vector<std::pair<double, size_t>> dims;  // variance, negated, and dimension
  for (const double variance : variances_of(keys))
    dims.emplace_back(std::isnan(variance) ? 0 : -variance, dims.size());
  std::sort(dims.begin(), dims.end());
  dims.resize(std::min(dims.size(), size_t{kSplitDims}));
  std::vector<std::vector<double>> narrow;
  for (const auto& key : keys) {
    auto& row = narrow.emplace_back();
    for (const auto& dim : dims)
      row.push_back(double{to_float(to_bfloat16(static_cast<float>(key[dim.second])))});
  }
  return narrow;
}

// Halves a group along its leading direction until every part is one page. Rows are halved by rank,
// so pages are equal; of equal projections the earlier row comes first.
void split(Rows keys, Group group, size_t page, std::vector<Group>& pages) {
  const size_t n_pages = group.size() / page;
  if (n_pages <= 1) {
    std::sort(group.begin(), group.end());
    pages.push_back(std::move(group));
    return;
  }
  const std::vector<double> direction = leading_direction(keys, group);
  std::vector<double> along(keys.size());
  for (const size_t i : group) {
    along[i] = std::inner_product(keys[i].begin(), keys[i].end(), direction.begin(), 0.0);
    if (std::isnan(along[i])) along[i] = 0;
  }
  std::sort(group.begin(), group.end(),
            [&](size_t a, size_t b) { return along[a] != along[b] ? along[a] < along[b] : a < b; });
  const auto middle = group.begin() + static_cast<std::ptrdiff_t>((n_pages + 1) / 2 * page);
  split(keys, Group(group.begin(), middle), page, pages);
  split(keys, Group(middle, group.end()), page, pages);
}

}  // namespace

std::vector<double> mean_of(Rows rows, const Group& group) {
  std::vector<double> mean(rows[0].size());
  for (const size_t i : group)
    for (size_t d = 0; d < mean.size(); ++d) mean[d] += rows[i][d];
  for (double& x : mean) x /= static_cast<double>(group.size());
  return mean;
}

double distance2(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t d = 0; d < a.size(); ++d) sum += (a[d] - b[d]) * (a[d] - b[d]);
  return sum;
}

std::vector<Group> cluster_keys(Rows keys, int64_t page) {
  const auto size = static_cast<size_t>(page);
  SLUICE_CHECK(keys.size() % size == 0);
  std::vector<Group> groups;
  Group all(keys.size());
  std::iota(all.begin(), all.end(), size_t{0});
  if (!all.empty()) split(widest_dims(keys), std::move(all), size, groups);
  return groups;
}

std::vector<double> variances_of(Rows keys) {
  Group all(keys.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const std::vector<double> mean = mean_of(keys, all);
  std::vector<double> found;
  for (size_t d = 0; d < mean.size(); ++d) {
    double variance = 0;
    for (const auto& key : keys) variance += (key[d] - mean[d]) * (key[d] - mean[d]);
    found.push_back(variance);
  }
  return found;
}

}  // namespace sluice::impl::reference::refine
