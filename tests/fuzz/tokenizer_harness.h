// What a fuzzer does with one tokenizer, shared by its targets and the mutation test.

#pragma once

#include <string>

#include "fuzz/harness.h"
#include "io/tokenizer/tokenizer.h"
#include "unit/test_files.h"

namespace sluice::impl::fuzz {

// Takes a text of many kinds of characters there and back, whole and streamed.
inline void use_tokenizer(const Tokenizer& tokenizer) {
  const std::string text =
      "Hello  world's 123,456 caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd\n\t<s></s>[MASK] "
      "\xf0\x9f\x98\x80 "
      "a\xcc\x81 \xff";
  const std::vector<int32_t> ids = tokenizer.encode(text, /*add_special=*/true);
  StreamDecoder stream(tokenizer, /*skip_special=*/false);
  std::string streamed;
  for (const int32_t id : ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) throw std::logic_error("an id out of range");
    streamed += stream.push(id);
  }
  streamed += stream.finish();
  if (streamed != tokenizer.decode(ids, /*skip_special=*/false))
    throw std::logic_error("streamed and whole decoding differ");
}

inline void feed_tokenizer_folder(const test::TempDir& folder) {
  expect_only_errors([&] { use_tokenizer(*open_tokenizer(folder.path())); });
}

inline void feed_tokenizer(const test::TempDir& folder, std::string_view json) {
  folder.write("tokenizer.json", json);
  feed_tokenizer_folder(folder);
}

}  // namespace sluice::impl::fuzz
