// Where a text of pieces is cut so that plain ones hold no special token.

#pragma once

#include <string>
#include <vector>

#include "io/tokenizer/added_tokens.h"
#include "io/tokenizer/tokenizer.h"

namespace sluice::impl::tok {

struct PlainCuts {
  std::string text;          // all pieces, valid UTF-8
  std::vector<size_t> cuts;  // ascending, in (0, text.size())
};

// A special token or marker that begins in a plain piece is cut behind its first character; one
// that begins before a plain piece and reaches into it, where the piece begins. Parts of the text
// that are encoded each for itself then hold none, at whatever stage it is looked for.
PlainCuts cut_plain_pieces(const PieceText& text, const AddedTokens& added);

}  // namespace sluice::impl::tok
