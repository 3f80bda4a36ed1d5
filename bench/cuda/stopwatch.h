// Time on the device by its own clock.

#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "backend/cuda/runtime/device.h"

namespace sluice::impl::bench {

class Stopwatch {
 public:
  explicit Stopwatch(cuda::Context& context) : context_(context) {
    cuda::check(cudaEventCreate(&begin_), "event");
    cuda::check(cudaEventCreate(&end_), "event");
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  double milliseconds(const std::function<void()>& work) {
    cuda::check(cudaEventRecord(begin_, context_.stream()), "event");
    work();
    cuda::check(cudaEventRecord(end_, context_.stream()), "event");
    context_.synchronize();
    float milliseconds = 0;
    cuda::check(cudaEventElapsedTime(&milliseconds, begin_, end_), "event");
    return milliseconds;
  }

 private:
  cuda::Context& context_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Milliseconds: the median of samples, and the spread of their middle half over it.
struct Timing {
  double median = 0, spread = 0;
  std::vector<double> samples = {};  // in the order they were taken
};
inline Timing middle(const std::vector<double>& samples) {
  std::vector<double> sorted = samples;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[sorted.size() / 2];
  return {median, (sorted[sorted.size() * 3 / 4] - sorted[sorted.size() / 4]) / median, samples};
}
// Of two that run one after another and have as many samples.
inline Timing operator+(const Timing& a, const Timing& b) {
  std::vector<double> sums;
  for (size_t i = 0; i < a.samples.size(); ++i) sums.push_back(a.samples[i] + b.samples.at(i));
  return middle(sums);
}

// What is taken off from the time of other work runs so many times as often as that: what starting
// it takes is not to be taken off.
constexpr int kOfLess = 16;

// More than the second-level cache holds.
constexpr int64_t kCacheBytes = int64_t{64} << 20;

}  // namespace sluice::impl::bench
