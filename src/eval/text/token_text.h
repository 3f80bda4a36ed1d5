// What a single token reads as, for maps of a text.

#pragma once

#include <string>

#include "io/tokenizer/tokenizer.h"

namespace sluice::impl {

// As it stands inside a text: with the space before it where the tokenizer puts one there. Special
// tokens as the vocabulary spells them. Always valid UTF-8: bytes that are no whole character on
// their own, because neighbours have the rest of it, as <0xE2>.
std::string token_text(const Tokenizer& tokenizer, int32_t id);

}  // namespace sluice::impl
