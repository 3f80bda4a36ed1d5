// Texts by their bytes, for finding the longest one that begins at a place.

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "io/tokenizer/flat_index.h"

namespace sluice::impl::tok {

class ByteTrie {
 public:
  // Longer texts are not put in: finding costs as much as the longest text, at every place.
  static constexpr size_t kMaxBytes = 1024;
  // A vocabulary of 256k tokens has 1.5M nodes.
  static constexpr size_t kMaxNodes = size_t{1} << 23;
  static constexpr size_t kBytesPerNode = 28;  // 14 to 20, and a part of it twice while it grows
  static constexpr int32_t kNone = -1;

  struct Match {
    size_t n_bytes = 0;  // 0: nothing found
    int32_t value = kNone;
  };

  explicit ByteTrie(size_t max_nodes = kMaxNodes) : max_nodes_(max_nodes) {}

  bool empty() const { return nodes_.size() == 1; }
  size_t max_nodes() const { return max_nodes_; }
  // False when the text is empty or too long, or the trie is full. A text put in twice keeps the
  // later value.
  bool add(std::string_view text, int32_t value) {
    if (text.empty() || text.size() > kMaxBytes || nodes_.size() + text.size() > max_nodes_)
      return false;
    uint32_t node = 0;
    for (const char byte : text) {
      uint32_t child = child_of(node, byte);
      if (child == FlatIndex::kNone) {
        child = static_cast<uint32_t>(nodes_.size());
        nodes_.push_back({node, kNone});
        bytes_.push_back(byte);
        children_.add(child, [this](uint32_t at) { return edge(nodes_[at].parent, bytes_[at]); });
      }
      node = child;
    }
    nodes_[node].value = value;
    starts_[static_cast<uint8_t>(text[0])] = true;
    return true;
  }

  // Calls visit(n_bytes, value) for every text that begins at text[at], the shortest first.
  template <typename Visit>
  void visit_at(std::string_view text, size_t at, const Visit& visit) const {
    if (!starts_[static_cast<uint8_t>(text[at])]) return;
    uint32_t node = 0;
    for (size_t end = at; end < text.size();) {
      node = child_of(node, text[end]);
      if (node == FlatIndex::kNone) return;
      ++end;
      if (nodes_[node].value != kNone) visit(end - at, nodes_[node].value);
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

  uint32_t child_of(uint32_t node, char byte) const {
    return children_.find(edge(node, byte), [&](uint32_t at) {
      return nodes_[at].parent == node && bytes_[at] == byte;
    });
  }

  struct Node {
    uint32_t parent = 0;
    int32_t value = kNone;
  };
  size_t max_nodes_;
  std::vector<Node> nodes_ = std::vector<Node>(1);  // the root
  std::vector<char> bytes_ = {0};                   // that lead to each
  FlatIndex children_;                              // by parent and byte
  std::vector<bool> starts_ = std::vector<bool>(256, false);
};

}  // namespace sluice::impl::tok
