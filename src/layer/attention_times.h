// Where the time of attention goes, for `sluice bench`.

#pragma once

#include <chrono>

namespace sluice {

// Wall time in seconds, summed over layers and passes.
struct AttentionTimes {
  double select = 0;  // choosing representatives
  double attend = 0;  // keys and values taken in, scores, outputs handed on; not the projections
};

// Adds the time of its scope to a part of `times`, if there are any. Two readings of the clock,
// below 0.1 us together, around work of at least several, so it is always on.
class TimedScope {
 public:
  TimedScope(AttentionTimes* times, double AttentionTimes::*part)
      : seconds_(times == nullptr ? nullptr : &(times->*part)),
        start_(std::chrono::steady_clock::now()) {}
  ~TimedScope() {
    if (seconds_ != nullptr)
      *seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  TimedScope(const TimedScope&) = delete;
  TimedScope& operator=(const TimedScope&) = delete;

 private:
  double* seconds_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace sluice
