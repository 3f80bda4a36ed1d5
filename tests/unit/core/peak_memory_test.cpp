#include "core/peak_memory.h"

#include <gtest/gtest.h>

#include "core/tensor.h"

namespace sluice::impl {
namespace {

constexpr int64_t kBytes = 64 << 20;

// host_buffer clears its memory, so all of it is resident.
void touch() { host_buffer(DType::kF32, {kBytes / 4}); }

TEST(PeakMemory, GrowsByMemoryThatIsTouchedAndKeepsItAfterItIsFreed) {
  restart_peak_memory();
  const int64_t before = peak_memory_bytes();
  if (before == 0) GTEST_SKIP() << "the kernel does not tell";
  touch();
  // An allocator may serve a part from memory that is resident already: half of it is new at least
  // in a process that has never held as much.
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
