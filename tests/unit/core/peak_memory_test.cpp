#include "core/peak_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

namespace sluice::impl {
namespace {

constexpr int64_t kBytes = 64 << 20;

// Makes so much resident and gives it back. Not by the allocator, which may keep what is freed.
void touch() {
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, kBytes);
  munmap(memory, kBytes);
}

TEST(PeakMemory, GrowsByMemoryThatIsTouchedAndKeepsItAfterItIsFreed) {
  restart_peak_memory();
  const int64_t before = peak_memory_bytes();
  if (before == 0) GTEST_SKIP() << "the kernel does not tell";
  touch();
  // The kernel counts pages of a thread in batches: half is well above what that hides.
  EXPECT_GE(peak_memory_bytes(), before + kBytes / 2);
}

TEST(PeakMemory, RestartForgetsWhatWasFreed) {
  touch();
  const int64_t before = peak_memory_bytes();
  if (before == 0) GTEST_SKIP() << "the kernel does not tell";
  restart_peak_memory();
  EXPECT_LE(peak_memory_bytes(), before - kBytes / 2);
}

}  // namespace
}  // namespace sluice::impl
