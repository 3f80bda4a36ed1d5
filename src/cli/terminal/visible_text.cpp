#include "cli/terminal/visible_text.h"

#include <unistd.h>

#include <cstdio>

#include "cli/terminal/print.h"
#include "io/tokenizer/utf8.h"

namespace sluice::impl::cli {
namespace {

bool is_unsafe(char32_t c) {
  if (c == U'\n' || c == U'\t') return false;
  const bool control = c < 0x20 || (c >= 0x7f && c < 0xa0);
  const bool direction = c == 0x061c || (c >= 0x200e && c <= 0x200f) ||
                         (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
  return control || direction;
}

}  // namespace

std::string visible_text(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const tok::Utf8Char c = tok::decode_char(text, at);
    if (!c.valid || is_unsafe(c.code))
      out += tok::to_utf8(tok::kReplacementChar);
    else
      out += text.substr(at, c.n_bytes);
    at += c.n_bytes;
  }
  return out;
}

void print_model_text(std::string_view text) {
  static const bool terminal = isatty(STDOUT_FILENO) == 1;
  if (terminal)
    print_text(visible_text(text));
  else
    print_text(text);
  std::fflush(stdout);
}

}  // namespace sluice::impl::cli
