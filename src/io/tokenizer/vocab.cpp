#include "io/tokenizer/vocab.h"

#include <algorithm>

#include "core/error.h"

namespace sluice::impl::tok {

namespace {

// FNV-1a: the hash of a text is found from that of the text without its last byte.
constexpr uint64_t kNoText = 0xCBF29CE484222325u;
uint64_t with_byte(uint64_t hash, char byte) {
  return (hash ^ static_cast<uint8_t>(byte)) * 0x100000001B3u;
}
uint64_t hash_text(std::string_view text) {
  uint64_t hash = kNoText;
  for (const char byte : text) hash = with_byte(hash, byte);
  return hash;
}
uint64_t hash_id(int32_t id) { return static_cast<uint32_t>(id); }

}  // namespace

uint32_t Vocab::place_of(int32_t id) const {
  return by_id_.find(hash_id(id), [&](uint32_t place) { return ids_[place] == id; });
}

bool Vocab::add(std::string_view text, int32_t id) {
  if (place_of(id) != FlatIndex::kNone || id_of(text)) return false;
  add_unreachable(text, id);
  most_bytes_ = std::max(most_bytes_, text.size());
  by_text_.add(static_cast<uint32_t>(ids_.size() - 1),
               [this](uint32_t place) { return hash_text(texts_[place]); });
  return true;
}

void Vocab::add_unreachable(std::string_view text, int32_t id) {
  SLUICE_CHECK(place_of(id) == FlatIndex::kNone);
  texts_.add(text);
  ids_.push_back(id);
  by_id_.add(static_cast<uint32_t>(ids_.size() - 1),
             [this](uint32_t place) { return hash_id(ids_[place]); });
  size_ = std::max(size_, id + 1);
}

std::optional<int32_t> Vocab::id_of(std::string_view text) const {
  const uint32_t place =
      by_text_.find(hash_text(text), [&](uint32_t at) { return texts_[at] == text; });
  if (place == FlatIndex::kNone) return std::nullopt;
  return ids_[place];
}

Vocab::Longest Vocab::longest(std::string_view before, std::string_view text) const {
  Longest found;
  uint64_t hash = hash_text(before);
  for (size_t n = 1; n <= text.size() && before.size() + n <= most_bytes_; ++n) {
    hash = with_byte(hash, text[n - 1]);
    const uint32_t place = by_text_.find(hash, [&](uint32_t at) {
      const std::string_view token = texts_[at];
      return token.size() == before.size() + n && token.ends_with(text.substr(0, n)) &&
             token.starts_with(before);
    });
    if (place != FlatIndex::kNone) found = {.n_bytes = n, .id = ids_[place]};
  }
  return found;
}

std::optional<std::string_view> Vocab::text_of(int32_t id) const {
  const uint32_t place = place_of(id);
  if (place == FlatIndex::kNone) return std::nullopt;
  return texts_[place];
}

}  // namespace sluice::impl::tok
