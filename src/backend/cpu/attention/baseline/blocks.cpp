#include "backend/cpu/attention/baseline/blocks.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sluice::impl::cpu::baseline {

void add_range(std::vector<KeyRange>& ranges, KeyRange range) {
  if (!ranges.empty() && ranges.back().end == range.begin)
    ranges.back().end = range.end;
  else
    ranges.push_back(range);
}

void fewest_blocks(std::vector<double> mass, double keep, std::vector<KeyRange>& read) {
  read.clear();
  const auto n = std::ssize(mass);
  // Not by the sum, which reaches the whole before blocks of tiny mass.
  if (keep >= 1 || n <= 2) return add_range(read, {0, n * kBaselineBlock});
  for (double& x : mass)
    if (std::isnan(x)) x = 0;
  const double wanted = keep * std::accumulate(mass.begin(), mass.end(), 0.0);
  std::vector<int64_t> order(static_cast<size_t>(n - 2));  // between the first and the last
  std::iota(order.begin(), order.end(), int64_t{1});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return mass[static_cast<size_t>(a)] > mass[static_cast<size_t>(b)];
  });
  double taken = mass.front() + mass.back();
  auto end = order.begin();
  while (end != order.end() && taken < wanted) taken += mass[static_cast<size_t>(*end++)];
  std::sort(order.begin(), end);
  add_range(read, {0, kBaselineBlock});
  for (auto block = order.begin(); block != end; ++block)
    add_range(read, {*block * kBaselineBlock, (*block + 1) * kBaselineBlock});
  add_range(read, {(n - 1) * kBaselineBlock, n * kBaselineBlock});
}

}  // namespace sluice::impl::cpu::baseline
