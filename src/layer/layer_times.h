// Where the time of a layer goes, for `sluice bench` and `sluice tune`.

#pragma once

#include <array>
#include <chrono>

#include "backend/backend.h"

namespace sluice::impl {

// Wall time in seconds, summed over passes.
struct LayerTimes {
  double select = 0;  // choosing representatives
  double attend = 0;  // rotary, keys and values taken in, scores, outputs handed on; no projections
  std::array<double, 4> linear = {};  // by linear input, in the order of BasisInput

  double all_linear() const { return linear[0] + linear[1] + linear[2] + linear[3]; }
  LayerTimes& operator+=(const LayerTimes& other) {
    select += other.select;
    attend += other.attend;
    for (size_t i = 0; i < linear.size(); ++i) linear[i] += other.linear[i];
    return *this;
  }
};

// Adds the time of its scope to `seconds`, unless null. Two readings of the clock, below 0.1 us
// together, around work of at least several, so it is always on. Where a device is given, the clock
// is read when it is done; without, a device's time is that of asking it.
class TimedScope {
 public:
  TimedScope(double* seconds, Backend* device) : seconds_(seconds), device_(device) {
    if (device_ != nullptr) device_->wait();
    start_ = std::chrono::steady_clock::now();
  }
  // A failure on the device is told by whoever next asks something of it.
  ~TimedScope() {
    try {
      if (device_ != nullptr) device_->wait();
    } catch (const Error&) {
      return;
    }
    if (seconds_ != nullptr)
      *seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  TimedScope(const TimedScope&) = delete;
  TimedScope& operator=(const TimedScope&) = delete;

 private:
  double* seconds_;
  Backend* device_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace sluice::impl
