#include "unit/ranks/pair_ranks.h"

#include <gtest/gtest.h>

#include "ranks/communicator.h"

namespace sluice::impl {
namespace {

TEST(PairRanks, AreTwoProcessesThatExchange) {
  auto transport = pair_transport();
  if (transport == nullptr) {
    EXPECT_EQ(
        run_as_pair("PairRanks.AreTwoProcessesThatExchange", {"SLUICE_TEST_NAME=rank {rank}"}),
        (std::array<int, 2>{0, 0}));
    return;
  }
  Communicator ranks(std::move(transport));
  ASSERT_EQ(ranks.size(), 2);
  EXPECT_EQ(std::getenv("SLUICE_TEST_NAME"), "rank " + std::to_string(ranks.rank()));
  std::vector<float> sums = {1.0f + static_cast<float>(ranks.rank()), 10.0f, -1.0f};
  ranks.add_all(sums);
  EXPECT_EQ(sums, (std::vector<float>{3.0f, 20.0f, -2.0f}));
  // Of one and of two numbers.
  const std::vector<int32_t> own(static_cast<size_t>(ranks.rank() + 1), 5 + ranks.rank());
  const auto gathered = ranks.gather_all(std::as_bytes(std::span(own)));
  ASSERT_EQ(gathered.size(), 2u);
  EXPECT_EQ(gathered[0].size(), 4u);
  EXPECT_EQ(gathered[1].size(), 8u);
  std::vector<std::byte> shared(ranks.rank() == 0 ? 3 : 0, std::byte{9});
  ranks.share(shared);
  EXPECT_EQ(shared, std::vector<std::byte>(3, std::byte{9}));
  ranks.barrier();
}

TEST(PairRanks, TellHowEachEnded) {
  if (const auto transport = pair_transport()) ::_exit(transport->rank() == 0 ? 0 : 7);
  EXPECT_EQ(run_as_pair("PairRanks.TellHowEachEnded", {}), (std::array<int, 2>{0, 7}));
}

}  // namespace
}  // namespace sluice::impl
