// Mean and standard error of a stream of numbers.

#pragma once

#include <cmath>
#include <cstdint>

namespace sluice {

// Welford's update.
class RunningMean {
 public:
  void add(double x) {
    ++count_;
    const double delta = x - mean_;
    mean_ += delta / static_cast<double>(count_);
    squares_ += delta * (x - mean_);
  }
  int64_t count() const { return count_; }
  double mean() const { return mean_; }
  double standard_error() const {  // 0 for fewer than two numbers
    if (count_ < 2) return 0;
    const auto n = static_cast<double>(count_);
    return std::sqrt(squares_ / (n - 1) / n);
  }

 private:
  int64_t count_ = 0;
  double mean_ = 0, squares_ = 0;
};

}  // namespace sluice
