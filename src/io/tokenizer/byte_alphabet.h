// The alphabet of byte-level BPE: every byte as one printable character. Bytes that are printable
// in Latin-1 stand for themselves, the other 68 follow from U+0100 on.

#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice::impl::tok {

std::string bytes_to_alphabet(std::string_view bytes);
// Nothing when a character is not in the alphabet.
std::optional<std::string> alphabet_to_bytes(std::string_view text);

}  // namespace sluice::impl::tok
