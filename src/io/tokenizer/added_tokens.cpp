#include "io/tokenizer/added_tokens.h"

#include <algorithm>

#include "io/tokenizer/char_class.h"
#include "io/tokenizer/utf8.h"

namespace sluice::impl::tok {

namespace {

// The character that ends at `at`.
char32_t char_before(std::string_view text, size_t at) {
  size_t begin = at - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return decode_char(text, begin).code;
}

bool stands_alone(std::string_view text, Span span) {
  const bool left = span.begin == 0 || !is_word(char_before(text, span.begin));
  const bool right = span.end == text.size() || !is_word(decode_char(text, span.end).code);
  return left && right;
}

size_t back_over_space(std::string_view text, size_t at, size_t floor) {
  while (at > floor) {
    const char32_t c = char_before(text, at);
    if (!is_whitespace(c)) break;
    at -= to_utf8(c).size();
  }
  return std::max(at, floor);
}

size_t on_over_space(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Char c = decode_char(text, at);
    if (!is_whitespace(c.code)) break;
    at += c.n_bytes;
  }
  return at;
}

}  // namespace

bool AddedTokens::add(const AddedToken& token, int32_t id, const Normalizer* normalizer) {
  std::string content = token.content;
  if (token.normalized && normalizer) {
    NormalText normal{content, false};
    normalizer->apply(normal);
    content = std::move(normal.text);
  }
  ByteTrie& trie = token.normalized ? normalized_ : raw_;
  if (!trie.add(content, id) && !content.empty()) return false;
  vocab_.add(token.content, id);
  tokens_.insert_or_assign(id, token);
  decoded_.insert_or_assign(id, std::move(content));
  if (token.special) special_.insert(token.content);
  return true;
}

bool AddedTokens::is_special(std::string_view content) const {
  return special_.contains(std::string(content));
}

const std::string* AddedTokens::decoded_text(int32_t id) const {
  const auto it = decoded_.find(id);
  return it == decoded_.end() ? nullptr : &it->second;
}

std::vector<TextPart> AddedTokens::split(std::string_view text, const ByteTrie& trie) const {
  std::vector<TextPart> parts;
  size_t covered = 0;  // bytes already in a part
  for (size_t at = 0; at < text.size() && !trie.empty();) {
    const ByteTrie::Match match = trie.longest_at(text, at);
    if (match.n_bytes == 0) {
      ++at;
      continue;
    }
    Span span{at, at + match.n_bytes};
    at = span.end;
    const AddedToken& token = tokens_.at(match.value);
    if (token.single_word && !stands_alone(text, span)) continue;
    if (token.lstrip) span.begin = back_over_space(text, span.begin, covered);
    if (token.rstrip) span.end = on_over_space(text, span.end);
    span.begin = std::max(span.begin, covered);
    span.end = std::max(span.end, span.begin);
    if (covered < span.begin) parts.push_back({{covered, span.begin}, std::nullopt});
    parts.push_back({span, match.value});
    covered = span.end;
  }
  if (covered < text.size()) parts.push_back({{covered, text.size()}, std::nullopt});
  return parts;
}

}  // namespace sluice::impl::tok
