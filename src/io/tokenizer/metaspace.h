// U+2581, the visible space of SentencePiece.

#pragma once

#include <string_view>
#include <vector>

namespace sluice::impl::tok {

inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";

// Whether it follows another character anywhere inside.
bool has_inner_metaspace(std::string_view text);
// Cuts before every one that follows another character.
std::vector<std::string_view> cut_at_metaspace(std::string_view text);

}  // namespace sluice::impl::tok
