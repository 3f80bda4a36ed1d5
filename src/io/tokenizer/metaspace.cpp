#include "io/tokenizer/metaspace.h"

namespace sluice::impl::tok {

std::vector<std::string_view> cut_at_metaspace(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (size_t at = text.find(kMetaspace, 1); at != std::string_view::npos;
       at = text.find(kMetaspace, at + kMetaspace.size())) {
    const bool after_another = at >= kMetaspace.size() &&
                               text.substr(at - kMetaspace.size(), kMetaspace.size()) == kMetaspace;
    if (after_another) continue;
    parts.push_back(text.substr(begin, at - begin));
    begin = at;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

bool has_inner_metaspace(std::string_view text) {
  return !text.empty() && cut_at_metaspace(text).size() > 1;
}

}  // namespace sluice::impl::tok
