#include "ranks/memory.h"

#include <gtest/gtest.h>

#include "core/available_memory.h"
#include "ranks/alike.h"
#include "unit/ranks/thread_ranks.h"

namespace sluice::impl {
namespace {

// Ranks are threads of one process here, so what is available is the same for all but for what
// others take meanwhile: within a fifth.
TEST(RankMemory, OfAMachineIsDividedByItsRanks) {
  const auto one = static_cast<double>(available_memory().shared);
  on_ranks(4,
           [&](Communicator& ranks) {
             const std::vector<int64_t> memory = memory_of(ranks);
             ASSERT_EQ(memory.size(), 4u);
             EXPECT_NEAR(static_cast<double>(memory[0]), one / 3, one / 15);
             EXPECT_NEAR(static_cast<double>(memory[1]), one, one / 5);
             EXPECT_NEAR(static_cast<double>(memory[2]), one / 3, one / 15);
             EXPECT_NEAR(static_cast<double>(memory[3]), one / 3, one / 15);
           },
           size_t{1} << 20, {"a", "b", "a", "a"});
}

TEST(CheckAlike, EveryRankNamesTheFirstThatDiffers) {
  on_ranks(3, [](Communicator& ranks) { EXPECT_NO_THROW(check_alike(ranks, "NEON")); });
  on_ranks(3, [](Communicator& ranks) {
    try {
      check_alike(ranks, ranks.rank() == 2 ? "AVX2" : "AVX3");
      FAIL();
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "ranks are of different kinds: rank 0 is AVX3, rank 2 is AVX2");
    }
  });
}

}  // namespace
}  // namespace sluice::impl
