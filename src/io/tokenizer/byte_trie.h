// Texts by their bytes, for finding the longest one that begins at a place.

#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sluice::impl::tok {

class ByteTrie {
 public:
  // Longer texts are not put in: finding costs as much as the longest text, at every place.
  static constexpr size_t kMaxBytes = 1024;
  // About 50 bytes each. A vocabulary of 256k tokens has 1.5M.
  static constexpr size_t kMaxNodes = size_t{1} << 23;
  static constexpr int32_t kNone = -1;

  struct Match {
    size_t n_bytes = 0;  // 0: nothing found
    int32_t value = kNone;
  };

  bool empty() const { return value_at_.size() == 1; }
  // False when the text is empty or too long, or the trie is full. A text put in twice keeps the
  // later value.
  bool add(std::string_view text, int32_t value) {
    if (text.empty() || text.size() > kMaxBytes || value_at_.size() + text.size() > kMaxNodes)
      return false;
    uint32_t node = 0;
    for (const char byte : text) {
      const auto fresh = static_cast<uint32_t>(value_at_.size());
      const auto [it, is_new] = children_.try_emplace(edge(node, byte), fresh);
      if (is_new) value_at_.push_back(kNone);
      node = it->second;
    }
    value_at_[node] = value;
    starts_[static_cast<uint8_t>(text[0])] = true;
    return true;
  }

  // Calls visit(n_bytes, value) for every text that begins at text[at], the shortest first.
  template <typename Visit>
  void visit_at(std::string_view text, size_t at, const Visit& visit) const {
    if (!starts_[static_cast<uint8_t>(text[at])]) return;
    uint32_t node = 0;
    for (size_t end = at; end < text.size();) {
      const auto it = children_.find(edge(node, text[end]));
      if (it == children_.end()) return;
      node = it->second;
      ++end;
      if (value_at_[node] != kNone) visit(end - at, value_at_[node]);
    }
  }

  Match longest_at(std::string_view text, size_t at) const {
    Match best;
    visit_at(text, at, [&best](size_t n_bytes, int32_t value) { best = {n_bytes, value}; });
    return best;
  }

 private:
  static uint64_t edge(uint32_t node, char byte) {
    return (uint64_t{node} << 8) | static_cast<uint8_t>(byte);
  }

  std::unordered_map<uint64_t, uint32_t> children_;  // (node, byte) -> node
  std::vector<int32_t> value_at_ = {kNone};
  std::vector<bool> starts_ = std::vector<bool>(256, false);
};

}  // namespace sluice::impl::tok
