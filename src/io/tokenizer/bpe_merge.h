// The merge loop shared by the two kinds of BPE: join the best pair, the leftmost among equals,
// until none is left. O(n log n) in the number of symbols.

#pragma once

#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

namespace sluice::impl::tok {

struct Symbol {
  int32_t id = -1;
  int32_t prev = -1;  // neighbours by index, -1 at the ends
  int32_t next = -1;
  uint32_t begin = 0;    // bytes of the word
  uint32_t n_bytes = 0;  // 0 once joined to the left neighbour
  bool frozen = false;   // never joined
};

struct Merge {
  double cost;  // lower goes first: a rank, or a negated score
  int32_t id;   // of the joined symbol
};

inline void link_symbols(std::vector<Symbol>& symbols) {
  const auto n = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < n; ++i) {
    symbols[i].prev = i - 1;
    symbols[i].next = i + 1 < n ? i + 1 : -1;
  }
}

// find_merge(left, right) -> std::optional<Merge>. Symbols with n_bytes 0 are gone afterwards.
template <typename FindMerge>
void merge_symbols(std::vector<Symbol>& symbols, const FindMerge& find_merge) {
  struct Candidate {
    double cost;
    int32_t left;
    int32_t id;
    uint32_t n_bytes;  // of both together; tells a stale candidate
    bool operator<(const Candidate& other) const {
      return cost != other.cost ? cost > other.cost : left > other.left;
    }
  };
  std::vector<Candidate> storage;
  storage.reserve(symbols.size());
  std::priority_queue<Candidate> queue({}, std::move(storage));
  const auto offer = [&](int32_t left) {
    if (left < 0 || symbols[left].next < 0) return;
    const Symbol& a = symbols[left];
    const Symbol& b = symbols[a.next];
    if (a.frozen || b.frozen) return;
    if (const std::optional<Merge> merge = find_merge(a, b)) {
      queue.push({merge->cost, left, merge->id, a.n_bytes + b.n_bytes});
    }
  };
  link_symbols(symbols);
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i) offer(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.left];
    if (left.n_bytes == 0 || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    if (left.n_bytes + right.n_bytes != best.n_bytes) continue;
    left.id = best.id;
    left.n_bytes = best.n_bytes;
    left.next = right.next;
    right.n_bytes = 0;
    if (left.next >= 0) symbols[left.next].prev = best.left;
    offer(left.prev);
    offer(best.left);
  }
}

}  // namespace sluice::impl::tok
