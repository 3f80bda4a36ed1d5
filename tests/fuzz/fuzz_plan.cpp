#include <cstddef>
#include <cstdint>

#include "fuzz/plan_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::impl::fuzz::feed_plan({reinterpret_cast<const char*>(data), size});
  return 0;
}
