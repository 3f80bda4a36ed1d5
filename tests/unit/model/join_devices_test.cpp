// Ranks join their devices where each has one of its own.

#include "model/join_devices.h"

#include <gtest/gtest.h>

#include <array>

#include "unit/ranks/thread_ranks.h"

namespace sluice::impl::test {
namespace {

struct Joined final : RankSums {
  void add_all(const Tensor&) override {}
};

// Devices that note how they were joined.
class NotedDevices final : public DeviceRanks {
 public:
  explicit NotedDevices(std::string id) : id_(std::move(id)) {}
  std::string device_id() const override { return id_; }
  std::vector<std::byte> make_group() override {
    ++n_groups;
    return {std::byte{7}, std::byte{9}};
  }
  std::unique_ptr<RankSums> join(std::span<const std::byte> group, int rank, int size) override {
    joined_group.assign(group.begin(), group.end());
    joined_rank = rank;
    joined_size = size;
    return std::make_unique<Joined>();
  }

  int n_groups = 0;
  std::vector<std::byte> joined_group;
  int joined_rank = -1, joined_size = -1;

 private:
  std::string id_;
};

// Whether three ranks were joined: all were or none.
bool three_join(const std::vector<std::string>& hosts, const std::array<const char*, 3>& ids) {
  std::array<int, 3> joined{};
  on_ranks(
      3,
      [&](Communicator& ranks) {
        const auto rank = static_cast<size_t>(ranks.rank());
        if (ids[rank] == nullptr) {
          joined[rank] = join_devices(ranks, nullptr) != nullptr ? 1 : 0;
          return;
        }
        NotedDevices devices(ids[rank]);
        joined[rank] = join_devices(ranks, &devices) != nullptr ? 1 : 0;
        EXPECT_EQ(devices.n_groups, joined[rank] == 1 && ranks.rank() == 0 ? 1 : 0);
        if (joined[rank] == 0) return;
        EXPECT_EQ(devices.joined_group, (std::vector{std::byte{7}, std::byte{9}}));
        EXPECT_EQ(devices.joined_rank, ranks.rank());
        EXPECT_EQ(devices.joined_size, 3);
      },
      size_t{1} << 20, hosts);
  EXPECT_TRUE(joined[0] == joined[1] && joined[1] == joined[2]);
  return joined[0] == 1;
}

TEST(JoinDevices, JoinsDifferentDevicesOfOneMachine) {
  EXPECT_TRUE(three_join({"a", "a", "a"}, {"0", "1", "2"}));
}

TEST(JoinDevices, JoinsDevicesOfOneNumberOnDifferentMachines) {
  EXPECT_TRUE(three_join({"a", "b", "b"}, {"0", "0", "1"}));
}

TEST(JoinDevices, LeavesRanksThatShareADevice) {
  EXPECT_FALSE(three_join({"a", "a", "b"}, {"0", "0", "0"}));
}

TEST(JoinDevices, LeavesAllWhereOneRankHasNone) {
  EXPECT_FALSE(three_join({"a", "a", "a"}, {"0", nullptr, "2"}));
}

}  // namespace
}  // namespace sluice::impl::test
