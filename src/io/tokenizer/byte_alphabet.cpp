#include "io/tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "io/tokenizer/utf8.h"

namespace sluice::impl::tok {

namespace {

constexpr char32_t kFirstOther = 0x100;
constexpr size_t kAlphabetEnd = 0x144;  // 256 + 68

struct Alphabet {
  std::array<std::string, 256> spelled;
  std::array<int, kAlphabetEnd> byte_of;

  Alphabet() {
    byte_of.fill(-1);
    char32_t next = kFirstOther;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      const char32_t code = printable ? byte : next++;
      spelled[byte] = to_utf8(code);
      byte_of[code] = static_cast<int>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

std::string bytes_to_alphabet(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  for (const char byte : bytes) out += alphabet().spelled[static_cast<uint8_t>(byte)];
  return out;
}

std::optional<std::string> alphabet_to_bytes(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_char(text, at);
    const int byte = c.valid && c.code < kAlphabetEnd ? alphabet().byte_of[c.code] : -1;
    if (byte < 0) return std::nullopt;
    out.push_back(static_cast<char>(byte));
    at += c.n_bytes;
  }
  return out;
}

}  // namespace sluice::impl::tok
