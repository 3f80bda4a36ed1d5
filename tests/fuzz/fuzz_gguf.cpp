#include <cstddef>
#include <cstdint>

#include "fuzz/harness.h"
#include "fuzz/tokenizer_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace fuzz = sluice::impl::fuzz;
  const auto bytes = std::as_bytes(std::span(data, size));
  fuzz::feed_gguf(bytes);
  fuzz::expect_only_errors([&] {
    const sluice::impl::GgufFile file = sluice::impl::parse_gguf(bytes, "input");
    fuzz::use_tokenizer(*sluice::impl::open_tokenizer(file));
  });
  return 0;
}
