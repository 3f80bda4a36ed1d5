#include "io/tokenizer/char_class.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "io/tokenizer/utf8.h"

namespace sluice::impl::tok {

namespace {

struct Range {
  char32_t first, last;
};

template <size_t N>
bool in_ranges(const std::array<Range, N>& ranges, char32_t c) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [c](Range r) { return c >= r.first && c <= r.last; });
}

// Circled and squared letters: symbols by category, alphabetic by property.
constexpr std::array<Range, 4> kLetterSymbols = {
    {{0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}}};

// The last two but one are as Hugging Face has them (0x2B81F, 0x2B920), not the block edges.
constexpr std::array<Range, 7> kBertIdeographs = {{{0x3400, 0x4DBF},
                                                   {0x4E00, 0x9FFF},
                                                   {0xF900, 0xFAFF},
                                                   {0x20000, 0x2A6DF},
                                                   {0x2A700, 0x2B81F},
                                                   {0x2B920, 0x2CEAF},
                                                   {0x2F800, 0x2FA1F}}};

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

}  // namespace

bool is_whitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  }
  const auto cat = category(c);
  return cat >= UTF8PROC_CATEGORY_PC && cat <= UTF8PROC_CATEGORY_PO;
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto cat = category(c);
  return cat >= UTF8PROC_CATEGORY_ND && cat <= UTF8PROC_CATEGORY_NO;
}

bool is_mark(char32_t c) {
  if (c < 0x80) return false;
  const auto cat = category(c);
  return cat >= UTF8PROC_CATEGORY_MN && cat <= UTF8PROC_CATEGORY_ME;
}

bool is_nonspacing_mark(char32_t c) { return c >= 0x80 && category(c) == UTF8PROC_CATEGORY_MN; }

bool is_word(char32_t c) {
  const auto cat = category(c);
  if (cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_NL) return true;  // L, M, Nd, Nl
  return cat == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D || in_ranges(kLetterSymbols, c);
}

bool is_cjk_ideograph(char32_t c) { return c >= 0x3400 && in_ranges(kBertIdeographs, c); }

bool is_bert_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  if (c == 0 || c == kReplacementChar) return true;
  const auto cat = category(c);
  return cat >= UTF8PROC_CATEGORY_CC && cat <= UTF8PROC_CATEGORY_CO;  // not the unassigned
}

void append_lower(std::string& out, char32_t c) {
  if (c == 0x130) {
    append_utf8(out, 'i');
    append_utf8(out, 0x307);
    return;
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

}  // namespace sluice::impl::tok
