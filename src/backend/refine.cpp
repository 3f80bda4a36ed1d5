#include "backend/refine.h"

#include <limits>
#include <utility>

#include "core/error.h"

namespace sluice::impl {
namespace {

// Sums of the first numbers and of their squares: the squared deviations of any run of them from
// its mean.
class Deviations {
 public:
  void add(double x) {
    sums_.push_back(sums_.back() + x);
    squares_.push_back(squares_.back() + x * x);
  }
  double of(size_t begin, size_t end) const {
    const double sum = sums_[end] - sums_[begin];
    return squares_[end] - squares_[begin] - sum * sum / static_cast<double>(end - begin);
  }

 private:
  std::vector<double> sums_{0}, squares_{0};
};

}  // namespace

DimGroups group_dims(const std::vector<double>& variances) {
  const size_t n = variances.size();
  std::vector<std::pair<double, int32_t>> order;  // variance and dimension
  for (size_t d = 0; d < n; ++d)
    order.emplace_back(std::isnan(variances[d]) ? 0 : variances[d], static_cast<int32_t>(d));
  std::sort(order.begin(), order.end());
  const double least = n == 0 ? 0 : order.back().first * kLeastVariance;
  DimGroups groups;
  Deviations deviations;
  for (const auto& [variance, dim] : order) {
    groups.dims.push_back(dim);
    deviations.add(least > 0 ? std::log(std::max(variance, least)) : 0);
  }
  const size_t n_groups = std::min(n, size_t{kSpreadGroups});
  // Of the first `end` dimensions in g groups: the least cost, and where the last group begins.
  const auto none = std::numeric_limits<double>::infinity();
  std::vector<double> cost(n + 1, none);
  cost[0] = 0;
  std::vector<std::vector<size_t>> begins(n_groups, std::vector<size_t>(n + 1));
  for (size_t g = 0; g < n_groups; ++g) {
    std::vector<double> next(n + 1, none);
    for (size_t end = g + 1; end <= n; ++end)
      for (size_t begin = g; begin < end; ++begin) {
        const double with = cost[begin] + deviations.of(begin, end);
        if (with >= next[end]) continue;
        next[end] = with;
        begins[g][end] = begin;
      }
    cost = std::move(next);
  }
  groups.begins.fill(static_cast<int32_t>(n));
  size_t end = n;
  for (size_t g = n_groups; g-- > 0;) groups.begins[g] = static_cast<int32_t>(end = begins[g][end]);
  return groups;
}

void check_refine(const RefineSpec& spec) {
  SLUICE_CHECK(spec.n_kv_heads > 0 && spec.n_heads % spec.n_kv_heads == 0);
  SLUICE_CHECK(static_cast<int64_t>(spec.heads.size()) == spec.n_kv_heads);
  SLUICE_CHECK(spec.page > 0 && spec.segment > 0 && spec.segment % spec.page == 0);
  SLUICE_CHECK(spec.sinks >= 0 && spec.sinks % spec.page == 0 && spec.sinks < spec.segment);
  SLUICE_CHECK(spec.early == 0 ||
               (spec.early > 0 && spec.early % spec.page == 0 && spec.segment % spec.early == 0));
  SLUICE_CHECK(spec.tile > 0 && spec.window >= 0);
  SLUICE_CHECK(spec.window % spec.tile == 0 && spec.segment % spec.tile == 0);
  SLUICE_CHECK(spec.capacity > 0 && spec.tile_factor > 0);
  for (const RefineHead& head : spec.heads) {
    SLUICE_CHECK(head.delta >= 0);  // infinity: only means
    SLUICE_CHECK(spec.causal || head.kind != HeadKind::kWindow);
  }
}

}  // namespace sluice::impl
