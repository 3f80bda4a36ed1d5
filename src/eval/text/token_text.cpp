#include "eval/text/token_text.h"

#include <fmt/format.h>

#include <array>

#include "io/tokenizer/byte_alphabet.h"
#include "io/tokenizer/utf8.h"

namespace sluice::impl {
namespace {

std::string with_visible_bytes(std::string_view bytes) {
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    const tok::Utf8Char c = tok::decode_char(bytes, at);
    const std::string_view part = bytes.substr(at, c.n_bytes);
    at += c.n_bytes;
    if (c.valid)
      out += part;
    else
      for (const char byte : part)
        out += fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte));
  }
  return out;
}

}  // namespace

std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  const std::string spelled = tokenizer.token_of(id);
  if (tokenizer.is_special(id)) return with_visible_bytes(spelled);
  // A decoder may treat the first token of a text differently, so the token is decoded twice and
  // the text of the second is used.
  const std::string one = tokenizer.decode(std::array{id}, /*skip_special=*/false);
  const std::string two = tokenizer.decode(std::array{id, id}, /*skip_special=*/false);
  const bool whole =
      two.starts_with(one) && two.find(tok::to_utf8(tok::kReplacementChar)) == two.npos;
  if (whole) return with_visible_bytes(std::string_view(two).substr(one.size()));
  // Decoding lost bytes. Byte-level vocabularies spell them in their alphabet; others have a token
  // <0xE2> for each, and that spelling passes through the alphabet as it is.
  return with_visible_bytes(tok::alphabet_to_bytes(spelled).value_or(spelled));
}

}  // namespace sluice::impl
