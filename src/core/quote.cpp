#include "core/quote.h"

namespace sluice::impl {
namespace {

void append_escaped(std::string& out, unsigned char byte) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  out += "\\x";
  out += kDigits[byte >> 4];
  out += kDigits[byte & 15];
}

}  // namespace

std::string quote(std::string_view text) {
  constexpr size_t kMaxShown = 100;  // longer than any tensor name seen in a checkpoint
  std::string out = "`";
  for (const char c : text.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f)
      append_escaped(out, byte);
    else
      out += c;
  }
  if (text.size() > kMaxShown) out += "... (" + std::to_string(text.size()) + " bytes)";
  return out + "`";
}

std::string path_label(const std::filesystem::path& path) {
  std::string out;
  for (const char c : path.string()) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f)
      append_escaped(out, byte);
    else
      out += c;
  }
  return out;
}

}  // namespace sluice::impl
