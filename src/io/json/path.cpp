#include "io/json/path.h"

#include <fmt/format.h>

#include "core/quote.h"

namespace sluice::impl {

void JsonPath::add_key(std::string_view key) {
  if (!text_.empty()) text_ += '.';
  const std::string quoted = quote(key);
  // Not by its length: escapes and the cut of a long key can add up to that of the key.
  const bool as_it_is = !key.empty() && quoted.compare(1, quoted.size() - 2, key) == 0 &&
                        key.find_first_of(" .[]`\\") == key.npos;
  text_ += as_it_is ? key : quoted;
}

void JsonPath::add_index(size_t index) { text_ += fmt::format("[{}]", index); }

std::string JsonPath::in(const std::string& label) const {
  constexpr size_t kMaxShown = 200;
  if (text_.empty()) return label;
  if (text_.size() <= kMaxShown) return label + ": " + text_;
  return label + ": ..." + text_.substr(text_.size() - kMaxShown);
}

}  // namespace sluice::impl
