#include "ranks/memory.h"

#include <gtest/gtest.h>

#include "unit/ranks/thread_ranks.h"

namespace sluice::impl {
namespace {

TEST(RankMemory, EveryRankKnowsThatOfAll) {
  on_ranks(3, [](Communicator& ranks) {
    const std::vector<int64_t> memory = memory_of(ranks);
    ASSERT_EQ(memory.size(), 3u);
    for (const int64_t bytes : memory) EXPECT_GT(bytes, 0);
  });
}

}  // namespace
}  // namespace sluice::impl
