#include <cstddef>
#include <cstdint>

#include "fuzz/bases_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::impl::fuzz::feed_bases(std::as_bytes(std::span(data, size)));
  return 0;
}
