// Parallel loops: every index once, exceptions carried out, loops inside loops.

#include "core/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "core/error.h"

namespace sluice::impl {
namespace {

class Threads : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_threads(GetParam()); }
  void TearDown() override { set_threads(0); }
};

struct Range {
  int64_t begin, end;
};

std::vector<Range> ranges_of(int64_t n, int64_t grain) {
  std::mutex mutex;
  std::vector<Range> ranges;
  parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    ranges.push_back({begin, end});
  });
  return ranges;
}

TEST_P(Threads, ParallelForCoversEveryIndexOnce) {
  for (const int64_t n : {0, 1, 2, 3, 7, 16, 17, 100, 1001})
    for (const int64_t grain : {0, 1, 3, 16, 5000}) {
      std::vector<int> visits(static_cast<size_t>(n));
      for (const Range& r : ranges_of(n, grain)) {
        EXPECT_LT(r.begin, r.end);
        for (int64_t i = r.begin; i < r.end; ++i) ++visits[static_cast<size_t>(i)];
      }
      for (const int count : visits) ASSERT_EQ(count, 1) << n << " by " << grain;
    }
}

TEST_P(Threads, ParallelForRangesAreAtLeastAGrain) {
  for (const int64_t n : {1, 17, 31, 32, 100, 1000})
    for (const int64_t grain : {1, 3, 16, 64}) {
      const auto ranges = ranges_of(n, grain);
      EXPECT_LE(ranges.size(), static_cast<size_t>(threads()));
      for (const Range& r : ranges)
        EXPECT_GE(r.end - r.begin, std::min(n, grain)) << n << " by " << grain;
    }
}

TEST_P(Threads, ParallelEachCallsEveryIndexOnce) {
  for (const int64_t n : {0, 1, 2, 5, 1000}) {
    std::vector<std::atomic<int>> visits(static_cast<size_t>(n));
    parallel_each(n, [&](int64_t i) { ++visits[static_cast<size_t>(i)]; });
    for (const auto& count : visits) ASSERT_EQ(count, 1);
  }
}

TEST_P(Threads, AnExceptionComesOutAsItIs) {
  const auto in_range = [](int64_t begin, int64_t end) {
    if (begin <= 70 && 70 < end) throw Error("index 70", "try another");
  };
  for (int repeat = 0; repeat < 3; ++repeat) {
    try {
      parallel_for(100, 1, in_range);
      FAIL() << "nothing thrown";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "index 70");
      EXPECT_EQ(error.hint(), "try another");
    }
    EXPECT_THROW(parallel_each(100, [&](int64_t i) { in_range(i, i + 1); }), Error);
  }
  // And every body throwing at once is one exception.
  EXPECT_THROW(parallel_each(64, [](int64_t) { throw Error("all"); }), Error);
  EXPECT_EQ(ranges_of(1, 1).size(), 1u);
}

TEST_P(Threads, LoopsInsideLoopsCoverEveryPairOnce) {
  std::vector<std::atomic<int>> visits(7 * 11);
  parallel_each(7, [&](int64_t i) {
    parallel_for(11, 1, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) ++visits[static_cast<size_t>(i * 11 + j)];
    });
  });
  parallel_for(7, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      parallel_each(11, [&](int64_t j) { ++visits[static_cast<size_t>(i * 11 + j)]; });
  });
  for (const auto& count : visits) ASSERT_EQ(count, 2);
}

TEST_P(Threads, ExceptionsCrossLoopsInsideLoops) {
  EXPECT_THROW(
      parallel_each(
          4, [](int64_t) { parallel_for(8, 1, [](int64_t, int64_t) { throw Error("inner"); }); }),
      Error);
}

INSTANTIATE_TEST_SUITE_P(Counts, Threads, testing::Values(1, 2, 3, 8));

TEST(SetThreads, ZeroMeansWhatTheMachineHas) {
  set_threads(3);
  EXPECT_EQ(threads(), 3);
  set_threads(0);
  EXPECT_GE(threads(), 1);
}

}  // namespace
}  // namespace sluice::impl
