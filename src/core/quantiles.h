// Quantiles of a stream of numbers that are not negative, in memory that does not grow with it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::impl {

// A histogram of bins that are each 1% wider than the one below. A quantile is the geometric middle
// of the bin its value fell into, so at most 0.5% from that value; the maximum is exact. Numbers
// below kSmallest count as 0, those above kLargest as kLargest.
class LogHistogram {
 public:
  static constexpr double kSmallest = 1e-12, kLargest = 1e4, kStep = 1.01;
  // sqrt(kStep) - 1, rounded up: the relative error of a quantile inside the range.
  static constexpr double kResolution = 0.005;

  LogHistogram();
  void add(double x);  // x >= 0, not NaN
  LogHistogram& operator+=(const LogHistogram& other);
  int64_t count() const { return count_; }
  double maximum() const { return maximum_; }  // 0 for no numbers

  // The smallest number that at least a share q of all are no larger than, q in (0, 1]; 0 for no
  // numbers.
  double quantile(double q) const;

  // For ranks/archive.h; few bins hold numbers.
  template <typename Archive>
  void transfer(Archive& archive) {
    std::vector<Bin> filled = filled_bins();
    archive(n_zeros_, count_, maximum_, filled);
    set_bins(filled);
  }

 private:
  struct Bin {
    size_t index;
    int64_t count;
  };
  std::vector<Bin> filled_bins() const;
  void set_bins(const std::vector<Bin>& filled);

  std::vector<int64_t> bins_;  // bin i holds [kSmallest * kStep^i, kSmallest * kStep^(i + 1))
  int64_t n_zeros_ = 0, count_ = 0;
  double maximum_ = 0;
};

}  // namespace sluice::impl
