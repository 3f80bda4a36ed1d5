#include <cstddef>
#include <cstdint>

#include "fuzz/harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::impl::fuzz::feed_gguf(std::as_bytes(std::span(data, size)));
  return 0;
}
