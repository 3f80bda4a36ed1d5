#include "core/available_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

namespace sluice::impl {
namespace {

TEST(AvailableMemory, IsLessThanTheMachineHas) {
  const int64_t machine = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  EXPECT_GT(available_memory_bytes(), 0);
  EXPECT_LT(available_memory_bytes(), machine);
}

TEST(AvailableMemory, IsWhatALimitOfTheProcessLeaves) {
  constexpr int64_t kLeft = int64_t{64} << 20;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit{};
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + kLeft);
    setrlimit(RLIMIT_AS, &limit);
    const int64_t available = available_memory_bytes();
    _exit(available > 0 && available <= kLeft ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace sluice::impl
