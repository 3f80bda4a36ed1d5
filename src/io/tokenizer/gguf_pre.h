// How text is cut before byte-level BPE, by the name GGUF files give in tokenizer.ggml.pre.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::impl::tok {

struct GgufPre {
  std::vector<std::string_view> regexes;  // one after another, each on the pieces of the last
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  // unless the file says otherwise
};

// Nothing for an unknown name.
std::optional<GgufPre> find_gguf_pre(std::string_view name);

}  // namespace sluice::impl::tok
