#include "io/tokenizer/vocab.h"

#include <algorithm>

namespace sluice::impl::tok {

bool Vocab::add(std::string text, int32_t id) {
  if (texts_.contains(id) || !ids_.try_emplace(text, id).second) return false;
  add_unreachable(std::move(text), id);
  return true;
}

void Vocab::add_unreachable(std::string text, int32_t id) {
  texts_.insert_or_assign(id, std::move(text));
  size_ = std::max(size_, id + 1);
}

std::optional<int32_t> Vocab::id_of(std::string_view text) const {
  const auto it = ids_.find(text);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

const std::string* Vocab::text_of(int32_t id) const {
  const auto it = texts_.find(id);
  return it == texts_.end() ? nullptr : &it->second;
}

}  // namespace sluice::impl::tok
