#include "core/available_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace sluice::impl {
namespace {

TEST(AvailableMemory, IsLessThanTheMachineHas) {
  const int64_t machine = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  EXPECT_GE(available_memory().shared, 0);
  EXPECT_LT(available_memory().shared, machine);
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
    const int64_t available = available_memory().own;
    _exit(available > 0 && available <= kLeft ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

class Groups : public testing::Test {
 protected:
  Groups() { std::filesystem::create_directories(root_ / "job" / "step"); }
  ~Groups() override { std::filesystem::remove_all(root_); }
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(root_ / file) << text;
  }
  int64_t available() const { return available_in_group(root_, "/job/step"); }

 private:
  std::filesystem::path root_ =
      std::filesystem::path(testing::TempDir()) / ("groups" + std::to_string(getpid()));
};

TEST_F(Groups, TheTightestOneLimits) {
  EXPECT_EQ(available(), std::numeric_limits<int64_t>::max());
  write("job/step/memory.max", "max\n");
  write("job/step/memory.current", "100\n");
  EXPECT_EQ(available(), std::numeric_limits<int64_t>::max());
  write("job/memory.max", "1000\n");
  write("job/memory.current", "300\n");
  EXPECT_EQ(available(), 700);
  write("job/step/memory.max", "150\n");
  EXPECT_EQ(available(), 50);
}

TEST_F(Groups, PagesOfFilesAreNotTaken) {
  write("job/memory.max", "1000\n");
  write("job/memory.current", "900\n");
  write("job/memory.stat", "anon 200\nactive_file 300\ninactive_file 400\n");
  EXPECT_EQ(available(), 800);
}

}  // namespace
}  // namespace sluice::impl
