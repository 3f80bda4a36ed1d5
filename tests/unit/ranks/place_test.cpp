#include "ranks/place.h"

#include <gtest/gtest.h>

#include <array>

#include "unit/ranks/thread_ranks.h"

namespace sluice::impl {
namespace {

TEST(PlaceOnMachine, CountsLowerRanksOfTheSameHost) {
  std::array<int, 4> places{};
  on_ranks(4,
           [&](Communicator& ranks) {
             places[static_cast<size_t>(ranks.rank())] = place_on_machine(ranks);
           },
           size_t{1} << 20, {"a", "ab", "a", "a"});
  EXPECT_EQ(places, (std::array{0, 0, 1, 2}));
}

TEST(PlaceOnMachine, IsTheFirstOfOneProcess) { EXPECT_EQ(place_on_machine(alone()), 0); }

}  // namespace
}  // namespace sluice::impl
