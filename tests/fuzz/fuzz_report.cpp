#include <cstddef>
#include <cstdint>

#include "fuzz/report_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const sluice::impl::test::TempDir folder;
  sluice::impl::fuzz::feed_report(folder, {reinterpret_cast<const char*>(data), size});
  return 0;
}
