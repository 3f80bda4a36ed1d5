// A tokenizer.json small enough to damage on purpose, and functions that open it.

#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "io/tokenizer/tokenizer.h"
#include "unit/test_files.h"

namespace sluice::impl::test {

// Byte-level BPE over a few letters: a b c space é, "ab", and the special token <s>.
inline nlohmann::json small_tokenizer() {
  return nlohmann::json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 7, "content": "<s>", "single_word": false, "lstrip": false,
                      "rstrip": false, "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]}}},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false,
              "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "Ã": 4, "©": 5, "ab": 6},
              "merges": ["a b"]}})");
}

struct TokenizerFolder {
  TempDir dir;
  TokenizerFolder() = default;
  explicit TokenizerFolder(const nlohmann::json& tokenizer) { put("tokenizer.json", tokenizer); }
  void put(const std::string& name, const nlohmann::json& content) const {
    dir.write(name, content.dump());
  }
  std::unique_ptr<Tokenizer> open() const { return open_tokenizer(dir.path()); }
};

}  // namespace sluice::impl::test
