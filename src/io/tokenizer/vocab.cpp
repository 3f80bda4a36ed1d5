#include "io/tokenizer/vocab.h"

#include <algorithm>

#include "core/error.h"

namespace sluice::impl::tok {

namespace {

uint64_t hash_text(std::string_view text) { return std::hash<std::string_view>{}(text); }
uint64_t hash_id(int32_t id) { return static_cast<uint32_t>(id); }

}  // namespace

uint32_t Vocab::place_of(int32_t id) const {
  return by_id_.find(hash_id(id), [&](uint32_t place) { return ids_[place] == id; });
}

bool Vocab::add(std::string_view text, int32_t id) {
  if (place_of(id) != FlatIndex::kNone || id_of(text)) return false;
  add_unreachable(text, id);
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

std::optional<std::string_view> Vocab::text_of(int32_t id) const {
  const uint32_t place = place_of(id);
  if (place == FlatIndex::kNone) return std::nullopt;
  return texts_[place];
}

}  // namespace sluice::impl::tok
