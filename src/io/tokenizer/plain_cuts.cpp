#include "io/tokenizer/plain_cuts.h"

#include <algorithm>

#include "io/tokenizer/utf8.h"

namespace sluice::impl::tok {
namespace {

struct PieceSpan {
  Span span;
  bool plain;
};

// The longest of what must not be a token and begins at text[at]; 0: none.
size_t longest_marker_at(std::string_view text, size_t at, const PieceText& pieces,
                         const AddedTokens& added) {
  size_t longest = 0;
  added.visit_special_at(text, at, [&](size_t n_bytes) { longest = std::max(longest, n_bytes); });
  for (const std::string& marker : pieces.markers)
    if (text.substr(at).starts_with(marker)) longest = std::max(longest, marker.size());
  return longest;
}

}  // namespace

PlainCuts cut_plain_pieces(const PieceText& text, const AddedTokens& added) {
  PlainCuts out;
  std::vector<PieceSpan> spans;
  for (const TextPiece& piece : text.pieces) {
    const size_t begin = out.text.size();
    out.text += is_valid_utf8(piece.text) ? piece.text : repair_utf8(piece.text);
    spans.push_back({{begin, out.text.size()}, piece.plain});
  }
  for (const auto& [span, plain] : spans)
    for (size_t at = span.begin; at < span.end; ++at) {
      const size_t n_bytes = longest_marker_at(out.text, at, text, added);
      if (n_bytes == 0) continue;
      const size_t first_char = at + decode_char(out.text, at).n_bytes;
      if (plain && first_char < out.text.size()) out.cuts.push_back(first_char);
      if (!plain && at + n_bytes > span.end) out.cuts.push_back(span.end);
    }
  std::sort(out.cuts.begin(), out.cuts.end());
  out.cuts.erase(std::unique(out.cuts.begin(), out.cuts.end()), out.cuts.end());
  return out;
}

}  // namespace sluice::impl::tok
