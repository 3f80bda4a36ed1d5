// Tokens by text and by id. Ids may have gaps; nothing is allocated for them.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/flat_index.h"
#include "io/tokenizer/packed_texts.h"

namespace sluice::impl::tok {

class Vocab {
 public:
  // Memory of a token beyond its text, in bytes: while the tables grow, and afterwards.
  static constexpr size_t kBytesPerToken = 48, kBytesPerTokenAfter = 30;

  // False when the text or the id is taken already; the vocabulary is then unchanged.
  bool add(std::string_view text, int32_t id);
  // The id gets a spelling, but the text is not to be found: a later token took its place. The id
  // has none yet.
  void add_unreachable(std::string_view text, int32_t id);

  std::optional<int32_t> id_of(std::string_view text) const;
  // The longest token that is `before` and then one byte or more of the beginning of `text`.
  struct Longest {
    size_t n_bytes = 0;  // of `text`; 0: there is none
    int32_t id = -1;
  };
  Longest longest(std::string_view before, std::string_view text) const;
  // Nothing when there is none. Valid until a token is added.
  std::optional<std::string_view> text_of(int32_t id) const;
  int32_t size() const { return size_; }  // largest id + 1
  // In the order in which they were added.
  size_t n_tokens() const { return ids_.size(); }
  int32_t id_at(size_t i) const { return ids_[i]; }
  std::string_view text_at(size_t i) const { return texts_[i]; }

 private:
  uint32_t place_of(int32_t id) const;

  PackedTexts texts_;
  std::vector<int32_t> ids_;  // of each text
  size_t most_bytes_ = 0;     // of a text that can be found
  FlatIndex by_text_, by_id_;
  int32_t size_ = 0;
};

}  // namespace sluice::impl::tok
