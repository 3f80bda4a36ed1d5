// The threshold that a layer chooses by itself: docs/algorithm.md, section 6.

#include "select/auto_tau.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "unit/select/small_sets.h"

namespace sluice::impl::test {
namespace {

// 20 tokens of which the first n are in the set, for each of auto_taus().
std::vector<TokenSet> sets_of(const std::vector<size_t>& n_reps) {
  std::vector<TokenSet> sets;
  for (size_t i = 0; i < n_reps.size(); ++i)
    sets.push_back(
        small_set(std::string(n_reps[i], 'r') + std::string(20 - n_reps[i], '.'), auto_taus()[i]));
  return sets;
}

double choose(const std::vector<size_t>& above, const std::vector<size_t>& tried) {
  return auto_tau(sets_of(tried), sets_of(above));
}

TEST(AutoTau, IsTheLargestUpToWhichSetsAreStable) {
  EXPECT_EQ(choose({10, 10, 10}, {10, 10, 10}), 0.4);
  EXPECT_EQ(choose({10, 10, 10}, {10, 10, 1}), 0.3);
  EXPECT_EQ(choose({10, 10, 10}, {10, 1, 1}), 0.2);
}

TEST(AutoTau, CountsTokensThatJoinAndThoseThatLeaveOfAll) {
  // 7 of 20 are kAutoTurnover.
  EXPECT_EQ(choose({10, 10, 10}, {10, 10, 3}), 0.4);
  EXPECT_EQ(choose({10, 10, 10}, {10, 10, 17}), 0.4);
  EXPECT_EQ(choose({10, 10, 10}, {10, 10, 2}), 0.3);
  EXPECT_EQ(choose({10, 10, 10}, {10, 10, 18}), 0.3);
}

TEST(AutoTau, MergesNothingWhereTheSmallestIsNotStable) {
  EXPECT_EQ(choose({15, 10, 10}, {1, 1, 1}), 0);
  // Both are small at larger ones, which is no sign of safety.
  EXPECT_EQ(choose({15, 2, 1}, {1, 1, 1}), 0);
}

TEST(AutoTau, TheFirstLayerTakesTheSmallest) { EXPECT_EQ(auto_tau(sets_of({10, 5, 1}), {}), 0.2); }

TEST(AutoTau, OtherSetsThanThoseTriedAreABrokenPromise) {
  EXPECT_THROW(auto_tau({}, {}), InternalError);
  EXPECT_THROW(auto_tau(sets_of({10, 5, 1}), sets_of({10, 5})), InternalError);
}

}  // namespace
}  // namespace sluice::impl::test
