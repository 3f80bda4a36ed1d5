// Interleaved timing of candidates and baselines: each runs once per round, so that a change in
// clock or load affects all of them.

#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace sluice::impl {

inline double time_ms(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// The middle half of the samples over their median: what a few slow ones do not change. 0 of fewer
// than four samples, which say nothing of it.
inline double spread_of(std::vector<double> samples) {
  if (samples.size() < 4) return 0;
  std::sort(samples.begin(), samples.end());
  const size_t quarter = samples.size() / 4;
  return (samples[samples.size() - 1 - quarter] - samples[quarter]) / median(samples);
}
// Samples with a larger spread were disturbed by other work of the machine.
inline constexpr double kMostSpread = 0.1;

// Ratios of samples of the same round: median, smallest and largest. A range that holds 1 shows no
// difference.
struct Ratio {
  double middle, low, high;
  bool above_one() const { return low > 1; }
  bool below_one() const { return high < 1; }
};
inline Ratio ratio_of(const std::vector<double>& numerator,
                      const std::vector<double>& denominator) {
  std::vector<double> ratios;
  for (size_t i = 0; i < numerator.size(); ++i) ratios.push_back(numerator[i] / denominator[i]);
  const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
  return {median(ratios), *low, *high};
}

// Calls work(piece, round) for all pieces in each round. `repeat` rounds follow a warm-up, which is
// round -1.
inline void run_interleaved(int repeat, size_t n_pieces,
                            const std::function<void(size_t piece, int round)>& work) {
  for (int round = -1; round < repeat; ++round)
    for (size_t piece = 0; piece < n_pieces; ++piece) work(piece, round);
}

// Times pieces of work, interleaved: `repeat` samples per piece, in ms.
inline std::vector<std::vector<double>> time_interleaved(
    int repeat, const std::vector<std::function<void()>>& pieces) {
  std::vector<std::vector<double>> samples(pieces.size());
  run_interleaved(repeat, pieces.size(), [&](size_t piece, int round) {
    const double ms = time_ms(pieces[piece]);
    if (round >= 0) samples[piece].push_back(ms);
  });
  return samples;
}

}  // namespace sluice::impl
