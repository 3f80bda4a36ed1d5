// Tokens by text and by id. Ids may have gaps; nothing is allocated for them.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace sluice::impl::tok {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

class Vocab {
 public:
  // False when the text or the id is taken already; the vocabulary is then unchanged.
  bool add(std::string text, int32_t id);
  // The id gets a spelling, but the text is not to be found: a later token took its place.
  void add_unreachable(std::string text, int32_t id);

  std::optional<int32_t> id_of(std::string_view text) const;
  const std::string* text_of(int32_t id) const;  // null when there is none
  int32_t size() const { return size_; }         // largest id + 1
  size_t n_tokens() const { return texts_.size(); }
  const std::unordered_map<int32_t, std::string>& texts() const { return texts_; }

 private:
  std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>> ids_;
  std::unordered_map<int32_t, std::string> texts_;
  int32_t size_ = 0;
};

}  // namespace sluice::impl::tok
