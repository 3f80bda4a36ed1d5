// A hash table of places in a list that its owner keeps: 5 to 11 bytes for each, where a map of the
// standard library takes 50 and more.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace sluice::impl::tok {

class FlatIndex {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  // The place whose item has this hash and for which is_it(place) holds; kNone where there is none.
  template <typename IsIt>
  uint32_t find(uint64_t hash, const IsIt& is_it) const {
    if (slots_.empty()) return kNone;
    for (size_t at = slot_of(hash); slots_[at] != kNone; at = next(at))
      if (is_it(slots_[at])) return slots_[at];
    return kNone;
  }

  // `hash_of` gives the hash of any place that is in. The item must not be in yet.
  template <typename HashOf>
  void add(uint32_t place, const HashOf& hash_of) {
    if (4 * (size_ + 1) > 3 * slots_.size()) grow(hash_of);
    put(place, hash_of(place));
    ++size_;
  }

 private:
  size_t next(size_t at) const { return (at + 1) & (slots_.size() - 1); }
  // The high bits of a product depend on all bits of the hash.
  size_t slot_of(uint64_t hash) const { return (hash * 0x9E3779B97F4A7C15u) >> shift_; }

  void put(uint32_t place, uint64_t hash) {
    size_t at = slot_of(hash);
    while (slots_[at] != kNone) at = next(at);
    slots_[at] = place;
  }

  template <typename HashOf>
  void grow(const HashOf& hash_of) {
    const std::vector<uint32_t> before = std::move(slots_);
    const size_t n_slots = before.empty() ? 16 : 2 * before.size();
    slots_.assign(n_slots, kNone);
    shift_ = 64;
    for (size_t n = n_slots; n > 1; n /= 2) --shift_;
    for (const uint32_t place : before)
      if (place != kNone) put(place, hash_of(place));
  }

  std::vector<uint32_t> slots_;  // a power of two of them, at most three quarters in use
  size_t size_ = 0;
  unsigned shift_ = 64;
};

}  // namespace sluice::impl::tok
