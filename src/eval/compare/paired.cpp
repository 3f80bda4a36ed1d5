#include "eval/compare/paired.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace sluice::impl {

std::optional<PairedInterval> paired_interval(std::span<const WindowSum> differences,
                                              uint64_t seed) {
  const size_t n = differences.size();
  if (n < kLeastPairedWindows) return {};
  const auto mean_of = [&](const auto& window_at) {
    double sum = 0, n_tokens = 0;
    for (size_t i = 0; i < n; ++i) {
      const WindowSum& window = differences[window_at(i)];
      sum += window.sum;
      n_tokens += static_cast<double>(window.n_tokens);
    }
    return sum / n_tokens;
  };
  std::mt19937_64 random(seed);
  std::vector<double> means;
  // Remainders by hand: the distributions of the standard library differ from one to another. The
  // bias is below n / 2^64.
  for (int i = 0; i < kPairedResamples; ++i)
    means.push_back(mean_of([&](size_t) { return static_cast<size_t>(random() % n); }));
  std::sort(means.begin(), means.end());
  const auto percentile = [&](double share) {
    return means[static_cast<size_t>(std::lround(share * (kPairedResamples - 1)))];
  };
  return PairedInterval{.mean = mean_of([](size_t i) { return i; }),
                        .low = percentile(0.025),
                        .high = percentile(0.975)};
}

}  // namespace sluice::impl
