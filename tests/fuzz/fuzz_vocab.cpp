// vocab.json and merges.txt, with a byte of 0 between them.

#include <cstddef>
#include <cstdint>

#include "fuzz/tokenizer_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const sluice::impl::test::TempDir folder;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(all.find('\0'), size);
  folder.write("vocab.json", all.substr(0, cut));
  folder.write("merges.txt", all.substr(std::min(cut + 1, size)));
  sluice::impl::fuzz::feed_tokenizer_folder(folder);
  return 0;
}
