// Mean and spread of a stream of numbers.

#pragma once

#include <cmath>
#include <cstdint>

namespace sluice::impl {

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
  // Both are 0 for fewer than two numbers.
  double standard_deviation() const {
    return count_ < 2 ? 0 : std::sqrt(squares_ / static_cast<double>(count_ - 1));
  }
  double standard_error() const {
    return count_ < 2 ? 0 : standard_deviation() / std::sqrt(static_cast<double>(count_));
  }

 private:
  int64_t count_ = 0;
  double mean_ = 0, squares_ = 0;
};

}  // namespace sluice::impl
