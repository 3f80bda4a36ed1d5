// What launchers tell their processes.

#include "ranks/world.h"

#include <gtest/gtest.h>

#include <map>

namespace sluice::impl {
namespace {

Launch launched_with(const std::map<std::string, std::string>& environment) {
  return launched([&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

TEST(World, KnowsTheLaunchersOfOpenMpiMpichAndSlurm) {
  for (const auto& [rank, size] :
       std::map<std::string, std::string>{{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                          {"PMI_RANK", "PMI_SIZE"},
                                          {"PMIX_RANK", "SLURM_STEP_NUM_TASKS"}}) {
    const Launch launch = launched_with({{rank, "2"}, {size, "4"}});
    EXPECT_TRUE(launch.several()) << rank;
    EXPECT_EQ(launch.rank, 2) << rank;
    EXPECT_EQ(launch.size, 4) << rank;
    EXPECT_FALSE(launched_with({{rank, "0"}, {size, "1"}}).several()) << rank;
  }
}

TEST(World, AsksMpiWhereARankComesWithoutASize) {
  EXPECT_TRUE(launched_with({{"PMIX_RANK", "0"}}).several());
  EXPECT_EQ(launched_with({{"PMIX_RANK", "0"}}).size, std::nullopt);
}

TEST(World, AProcessOfABatchJobIsAlone) {
  EXPECT_FALSE(launched_with({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}).several());
  EXPECT_FALSE(launched_with({}).several());
}

}  // namespace
}  // namespace sluice::impl
