#include "eval/shell_line.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/tokenizer/utf8.h"

namespace sluice::impl {
namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// No shell sees more in these than they are, wherever they stand in a word.
bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_-./,:@%+=").find(c) != std::string_view::npos;
}

// $'…': bytes that a line of text cannot hold, in octal, which has a fixed length.
std::string with_escapes(std::string_view word) {
  std::string out = "$'";
  for (size_t at = 0; at < word.size();) {
    const tok::Utf8Char c = tok::decode_char(word, at);
    const std::string_view bytes = word.substr(at, c.n_bytes);
    at += c.n_bytes;
    if (bytes == "\n")
      out += "\\n";
    else if (bytes == "\t")
      out += "\\t";
    else if (!c.valid || is_control(bytes.front()))
      for (const char byte : bytes)
        out += fmt::format("\\{:03o}", static_cast<unsigned char>(byte));
    else if (bytes == "'" || bytes == "\\")
      out.append("\\").append(bytes);
    else
      out += bytes;
  }
  return out + "'";
}

std::string quoted_word(std::string_view word) {
  if (std::any_of(word.begin(), word.end(), is_control) || !tok::is_valid_utf8(word))
    return with_escapes(word);
  // zsh reads =name as the path of a command.
  if (!word.empty() && word.front() != '=' && std::all_of(word.begin(), word.end(), is_plain))
    return std::string(word);
  std::string out = "'";
  for (const char c : word)
    if (c == '\'')
      out += "'\\''";
    else
      out += c;
  return out + "'";
}

}  // namespace

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + quoted_word(word);
  return line;
}

}  // namespace sluice::impl
