// Values as bytes, and items divided over ranks.

#include "ranks/divide.h"

#include <gtest/gtest.h>

#include "unit/ranks/thread_ranks.h"

namespace sluice::impl {
namespace {

struct Part {
  int64_t item = -1;
  std::string text;
  std::vector<double> numbers;
  std::optional<std::vector<int32_t>> ids;

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(item, text, numbers, ids);
  }
};

Part part_of(int64_t item) {
  Part part{
      .item = item, .text = std::string(static_cast<size_t>(item), 'x'), .numbers = {}, .ids = {}};
  part.numbers.assign(static_cast<size_t>(item % 3), 0.1 * static_cast<double>(item));
  if (item % 2 == 1) part.ids = {7, static_cast<int32_t>(item)};
  return part;
}

TEST(Divide, EveryRankGetsEveryPartInTheOrderOfItems) {
  for (const int n_ranks : {1, 2, 3, 4})
    for (const int64_t n_items : {0, 1, 3, 4, 11})
      on_ranks(n_ranks, [&](Communicator& ranks) {
        int64_t next_item = 0, n_worked = 0;
        std::vector<int64_t> used;
        divide<Part>(
            ranks, [&] { return next_item++ < n_items; },
            [&] {
              ++n_worked;
              EXPECT_EQ((next_item - 1) % n_ranks, ranks.rank());
              return part_of(next_item - 1);
            },
            [&](const Part& part) {
              const Part expected = part_of(part.item);
              EXPECT_EQ(part.text, expected.text);
              EXPECT_EQ(part.numbers, expected.numbers);
              EXPECT_EQ(part.ids, expected.ids);
              used.push_back(part.item);
            });
        ASSERT_EQ(std::ssize(used), n_items);
        for (int64_t i = 0; i < n_items; ++i) EXPECT_EQ(used[static_cast<size_t>(i)], i);
        EXPECT_LE(n_worked, (n_items + n_ranks - 1) / n_ranks);
      });
}

TEST(Divide, RanksThatHaveOtherItemsSaySo) {
  for (const int64_t n_more : {1, 2})
    on_ranks(2, [&](Communicator& ranks) {
      int64_t next_item = 0;
      const int64_t n_items = 4 + ranks.rank() * n_more;
      try {
        divide<Part>(
            ranks, [&] { return next_item++ < n_items; }, [&] { return part_of(next_item - 1); },
            [](const Part&) {});
        ADD_FAILURE() << "rank " << ranks.rank() << " did not notice";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("is longer than"), std::string::npos);
      }
    });
}

TEST(Divide, ARankThatFailsAtItsItemEndsAll) {
  on_ranks(3, [](Communicator& ranks) {
    int64_t next_item = 0;
    const auto run = [&] {
      divide<Part>(
          ranks, [&] { return next_item++ < 9; },
          [&] {
            if (next_item == 5) ranks.fail(Error("item 4"), 1);
            return part_of(0);
          },
          [](const Part&) {});
    };
    EXPECT_THROW(run(), RankError);
  });
}

TEST(Divide, AValueOfTheFirstRankReachesAll) {
  on_ranks(3, [](Communicator& ranks) {
    Part part = part_of(ranks.rank() == 0 ? 5 : 0);
    share_from_first(ranks, part);
    EXPECT_EQ(part.item, 5);
    EXPECT_EQ(part.ids, part_of(5).ids);
  });
}

}  // namespace
}  // namespace sluice::impl
