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

// Milliseconds: the median of repeats, and the spread of the middle half over it.
struct Timing {
  double median = 0, spread = 0;
};
inline Timing middle(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  return {median, (times[times.size() * 3 / 4] - times[times.size() / 4]) / median};
}

// What is taken off from the time of other work runs so many times as often as that: what starting
// it takes is not to be taken off.
constexpr int kOfLess = 16;

// More than the second-level cache holds.
constexpr int64_t kCacheBytes = int64_t{64} << 20;

}  // namespace sluice::impl::bench
