#include "io/tokenizer/utf8.h"

#include <algorithm>

namespace sluice::impl::tok {

namespace {

struct LeadByte {
  size_t n_bytes;   // 0 for a byte that cannot begin a character
  uint8_t low = 0;  // range of the second byte, which excludes overlong forms and surrogates
  uint8_t high = 0;
};

LeadByte lead_byte(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

uint8_t byte_at(std::string_view text, size_t at) { return static_cast<uint8_t>(text[at]); }

}  // namespace

Utf8Char decode_char(std::string_view text, size_t at) {
  const uint8_t first = byte_at(text, at);
  const LeadByte lead = lead_byte(first);
  if (lead.n_bytes == 0) return {};
  if (lead.n_bytes == 1) return {first, 1, true};
  char32_t code = first & (0x7Fu >> lead.n_bytes);
  for (size_t i = 1; i < lead.n_bytes; ++i) {
    if (at + i >= text.size()) return {kReplacementChar, i, false};
    const uint8_t byte = byte_at(text, at + i);
    const uint8_t low = i == 1 ? lead.low : uint8_t{0x80};
    const uint8_t high = i == 1 ? lead.high : uint8_t{0xBF};
    if (byte < low || byte > high) return {kReplacementChar, i, false};
    code = (code << 6) | (byte & 0x3Fu);
  }
  return {code, lead.n_bytes, true};
}

void append_utf8(std::string& out, char32_t code) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

std::string to_utf8(char32_t code) {
  std::string out;
  append_utf8(out, code);
  return out;
}

bool is_valid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_char(text, at);
    if (!c.valid) return false;
    at += c.n_bytes;
  }
  return true;
}

std::string repair_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_char(text, at);
    if (c.valid) {
      out.append(text.substr(at, c.n_bytes));
    } else {
      append_utf8(out, kReplacementChar);
    }
    at += c.n_bytes;
  }
  return out;
}

size_t incomplete_suffix(std::string_view text) {
  const size_t limit = std::min<size_t>(3, text.size());
  for (size_t back = 1; back <= limit; ++back) {
    const size_t at = text.size() - back;
    const uint8_t byte = byte_at(text, at);
    if (byte >= 0x80 && byte < 0xC0) continue;  // inside a character
    const bool cut = lead_byte(byte).n_bytes > back;
    return cut && decode_char(text, at).n_bytes == back ? back : 0;
  }
  return 0;
}

}  // namespace sluice::impl::tok
