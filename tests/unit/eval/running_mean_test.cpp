// Mean and standard error of a stream against two passes over it.

#include "eval/compare/running_mean.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace sluice::impl::test {
namespace {

TEST(RunningMean, AgreesWithTwoPasses) {
  std::mt19937 random(3);
  for (const double offset : {0.0, 1e6}) {
    std::vector<double> numbers;
    RunningMean running;
    for (int i = 0; i < 1000; ++i) {
      numbers.push_back(offset + static_cast<double>(random()) * 0x1p-32);
      running.add(numbers.back());
    }
    double mean = 0, squares = 0;
    for (const double x : numbers) mean += x / 1000;
    for (const double x : numbers) squares += (x - mean) * (x - mean);
    EXPECT_EQ(running.count(), 1000);
    // A thousand float64 additions: relative 1e-13 of the numbers, and of the spread as seen
    // from an offset of a million.
    EXPECT_NEAR(running.mean(), mean, 1e-13 * (offset + 1));
    EXPECT_NEAR(running.standard_error(), std::sqrt(squares / 999 / 1000), 1e-9);
  }
}

TEST(RunningMean, OfFewerThanTwoNumbersHasNoError) {
  RunningMean running;
  EXPECT_EQ(running.count(), 0);
  EXPECT_EQ(running.standard_error(), 0);
  running.add(5);
  EXPECT_EQ(running.mean(), 5);
  EXPECT_EQ(running.standard_error(), 0);
}

}  // namespace
}  // namespace sluice::impl::test
