// Clocks around scopes: only their sums are looked at, never how long anything took.

#include "layer/layer_times.h"

#include <gtest/gtest.h>

namespace sluice::impl {
namespace {

// Returns after the clock has moved.
void wait_a_tick() {
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() == start) continue;
}

TEST(TimedScope, AddsToItsOwnPart) {
  LayerTimes times;
  {
    const TimedScope timed(&times.select, nullptr);
    wait_a_tick();
  }
  EXPECT_GT(times.select, 0);
  EXPECT_EQ(times.attend, 0);
  const double before = times.select;
  for (double* part : {&times.select, &times.attend}) {
    const TimedScope timed(part, nullptr);
    wait_a_tick();
  }
  EXPECT_GT(times.select, before);
  EXPECT_GT(times.attend, 0);
}

TEST(TimedScope, WithoutTimesDoesNothing) { const TimedScope timed(nullptr, nullptr); }

}  // namespace
}  // namespace sluice::impl
