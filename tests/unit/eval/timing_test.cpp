// Interleaving and ratios, on numbers that are given: no test here depends on how long anything
// takes.

#include "eval/timing.h"

#include <gtest/gtest.h>

#include <utility>

namespace sluice::impl {
namespace {

TEST(Median, IsTheMiddleOrTheMeanOfTheTwoThere) {
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({9, 1, 5}), 5);
  EXPECT_EQ(median({9, 1, 5, 6}), 5.5);
}

TEST(RatioOf, IsOfPairsNotOfMedians) {
  // Pairs: 3, 5, 1; the ratio of medians would be 8 / 3.
  const Ratio ratio = ratio_of({9, 5, 8}, {3, 1, 8});
  EXPECT_EQ(ratio.middle, 3);
  EXPECT_EQ(ratio.low, 1);
  EXPECT_EQ(ratio.high, 5);
}

TEST(RunInterleaved, CallsEveryPieceOnceARoundAfterOneToWarmUp) {
  std::vector<std::pair<size_t, int>> calls;
  run_interleaved(2, 3, [&](size_t piece, int round) { calls.emplace_back(piece, round); });
  const std::vector<std::pair<size_t, int>> expected = {{0, -1}, {1, -1}, {2, -1}, {0, 0}, {1, 0},
                                                        {2, 0},  {0, 1},  {1, 1},  {2, 1}};
  EXPECT_EQ(calls, expected);
}

TEST(TimeInterleaved, KeepsASamplePerRoundAndDropsTheFirst) {
  int first = 0, second = 0;
  const auto samples = time_interleaved(3, {[&] { ++first; }, [&] { ++second; }});
  ASSERT_EQ(samples.size(), 2u);
  for (const auto& of_piece : samples) EXPECT_EQ(of_piece.size(), 3u);
  EXPECT_EQ(first, 4);
  EXPECT_EQ(second, 4);
}

}  // namespace
}  // namespace sluice::impl
