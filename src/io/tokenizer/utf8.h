// UTF-8 as the tokenizers need it: walk, append, repair, and say where a whole character ends.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::impl::tok {

inline constexpr char32_t kReplacementChar = 0xFFFD;

struct Utf8Char {
  char32_t code = kReplacementChar;
  size_t n_bytes = 1;  // what to step over, also when not valid
  bool valid = false;
};

// The character at text[at]. An invalid one reports the length of its longest sensible prefix,
// the unit that one U+FFFD stands for.
Utf8Char decode_char(std::string_view text, size_t at);

void append_utf8(std::string& out, char32_t code);
std::string to_utf8(char32_t code);

bool is_valid_utf8(std::string_view text);
// Invalid parts as U+FFFD, one for each longest sensible prefix.
std::string repair_utf8(std::string_view text);
// Bytes at the end that begin a character but do not finish it: 0 to 3.
size_t incomplete_suffix(std::string_view text);

}  // namespace sluice::impl::tok
