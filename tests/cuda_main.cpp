// Of tests that need a GPU: where there is none they say so to ctest, which counts them as skipped.

#include <gtest/gtest.h>

#include "backend/cuda/runtime/device.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  constexpr int kSkipped = 77;  // as tests/CMakeLists.txt has it
  if (const int failed = RUN_ALL_TESTS(); failed != 0) return failed;
  return sluice::impl::cuda::device_count() > 0 ? 0 : kSkipped;
}
