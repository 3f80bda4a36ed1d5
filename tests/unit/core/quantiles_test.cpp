// Streamed quantiles against sorted samples.

#include "core/quantiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

constexpr double kShares[] = {0.001, 0.1, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0};

TEST(LogHistogram, QuantilesAreWithinTheResolutionOfSortedSamples) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> uniform(0, 1);
  // Over all of the range, inside one decade, and in a heap at one place.
  for (const double decades : {15.0, 1.0, 0.001}) {
    for (const int n : {1, 2, 3, 10, 997, 20000}) {
      LogHistogram histogram;
      std::vector<double> samples;
      for (int i = 0; i < n; ++i) {
        samples.push_back(1e-11 * std::pow(10, decades * uniform(random)));
        histogram.add(samples.back());
      }
      std::sort(samples.begin(), samples.end());
      EXPECT_EQ(histogram.count(), n);
      EXPECT_EQ(histogram.maximum(), samples.back());
      for (const double q : kShares) {
        const double exact = samples[static_cast<size_t>(std::ceil(q * n)) - 1];
        // The bin is found through float64 logarithms: a few units in the last place on top.
        EXPECT_NEAR(histogram.quantile(q), exact, (LogHistogram::kResolution + 1e-12) * exact)
            << "decades " << decades << ", n " << n << ", q " << q;
      }
    }
  }
}

TEST(LogHistogram, NumbersBelowTheSmallestBinCountAsZero) {
  LogHistogram histogram;
  for (const double x : {0.0, 1e-300, 0.99e-12, 1.0, 2.0}) histogram.add(x);
  EXPECT_EQ(histogram.quantile(0.6), 0);
  EXPECT_NEAR(histogram.quantile(0.8), 1.0, LogHistogram::kResolution);
  EXPECT_NEAR(histogram.quantile(1.0), 2.0, 2 * LogHistogram::kResolution);
  EXPECT_EQ(histogram.maximum(), 2.0);
}

TEST(LogHistogram, NumbersAboveTheLargestKeepTheirMaximum) {
  LogHistogram histogram;
  for (const double x : {1.0, 1e5, 1e300}) histogram.add(x);
  EXPECT_EQ(histogram.maximum(), 1e300);
  EXPECT_NEAR(histogram.quantile(1.0), LogHistogram::kLargest, 0.01 * LogHistogram::kLargest);
}

TEST(LogHistogram, AQuantileIsNeverAboveTheMaximum) {
  for (double x = 1e-3; x < 1e-2; x *= 1.0003) {
    LogHistogram histogram;
    histogram.add(x);
    EXPECT_LE(histogram.quantile(0.999), x);
  }
}

TEST(LogHistogram, WithoutNumbersIsZero) {
  const LogHistogram histogram;
  EXPECT_EQ(histogram.quantile(0.5), 0);
  EXPECT_EQ(histogram.maximum(), 0);
}

TEST(LogHistogram, RefusesWhatIsNoDistance) {
  LogHistogram histogram;
  EXPECT_THROW(histogram.add(std::nan("")), InternalError);
  EXPECT_THROW(histogram.add(-1e-9), InternalError);
}

}  // namespace
}  // namespace sluice::impl::test
