#include "io/tokenizer/regex_syntax.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/quote.h"

namespace sluice::impl::tok {

namespace {

// Class bodies. PCRE2's own \s adds U+180E and its \w leaves out combining marks.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})"
    R"(\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
constexpr std::string_view kHex = "0-9a-fA-F";

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) step();
    if (in_class_) refuse("has a character class without an end");
    return std::move(out_);
  }

 private:
  void step() {
    const char c = pattern_[at_];
    if (c == '\\') return escape();
    if (in_class_) return inside_class(c);
    if (c == '[') return open_class();
    if (c == '(' && looking_at("(?")) return group();
    if (c == '}' && looking_at("}+")) refuse("repeats an interval with '+'");
    copy(1);
  }

  void escape() {
    if (at_ + 1 >= pattern_.size()) refuse("ends in a backslash");
    switch (pattern_[at_ + 1]) {
      case 's':
        return put_class(kSpace, false);
      case 'S':
        return put_class(kSpace, true);
      case 'w':
        return put_class(kWord, false);
      case 'W':
        return put_class(kWord, true);
      case 'h':
        return put_class(kHex, false);  // a hexadecimal digit, not a blank
      case 'H':
        return put_class(kHex, true);
      case 'v':
        return put("\\x{b}");  // vertical tab alone, not every line break
      case 'b':
        if (in_class_) return put("\\x{8}");
        return put(fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kWord));
      case 'B':
        return put(fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", kWord));
      case 'K':
      case 'C':
      case 'g':
      case 'k':
      case 'Q':
      case 'E':
      case 'G':
        return refuse(fmt::format("uses \\{}, which is not supported", pattern_[at_ + 1]));
      case 'p':
      case 'P':
      case 'x':
        return braced_escape();
      default:
        return copy(2);
    }
  }

  // \p{L}: the closing brace is not that of an interval.
  void braced_escape() {
    const bool braced = at_ + 2 < pattern_.size() && pattern_[at_ + 2] == '{';
    const size_t end = braced ? pattern_.find('}', at_) : at_ + 1;
    if (end == std::string_view::npos) refuse("has a brace without an end");
    copy(end + 1 - at_);
  }

  void put_class(std::string_view body, bool negated) {
    if (in_class_ && negated) return put_negated_in_class(body);
    put(in_class_ ? std::string(body) : fmt::format("[{}{}]", negated ? "^" : "", body));
  }

  // PCRE2 has no nested classes, so the complement is spelled with properties. They agree on
  // all but U+180E and marks, which no known tokenizer pattern tells apart here.
  void put_negated_in_class(std::string_view body) {
    if (body == kHex) refuse("uses \\H inside a character class");
    put(body == kSpace ? "\\S" : "\\W");
  }

  void open_class() {
    in_class_ = true;
    copy(1);
    if (looking_at("^")) copy(1);
    if (looking_at("]")) put("\\]", 1);
  }

  void inside_class(char c) {
    if (looking_at("&&")) refuse("uses the class intersection &&");
    if (looking_at("[:")) {
      const size_t end = pattern_.find(":]", at_);
      if (end == std::string_view::npos) refuse("has a character class without an end");
      return copy(end + 2 - at_);
    }
    if (c == '[') refuse("nests one character class in another");
    if (c == ']') in_class_ = false;
    copy(1);
  }

  // (?m) means "dot matches line breaks" to Oniguruma and another thing to PCRE2.
  void group() {
    static constexpr std::string_view kKnown[] = {"(?:",  "(?=",  "(?!",   "(?<=",  "(?<!", "(?>",
                                                  "(?i:", "(?i)", "(?-i:", "(?-i)", "(?#"};
    for (const std::string_view known : kKnown) {
      if (looking_at(known)) return copy(known.size());
    }
    if (looking_at("(?<")) return copy(3);  // a named group
    refuse("uses a group option that is not supported");
  }

  bool looking_at(std::string_view text) const { return pattern_.substr(at_, text.size()) == text; }
  void copy(size_t n) {
    out_.append(pattern_.substr(at_, n));
    at_ += n;
  }
  void put(std::string_view text, size_t consumed = 2) {
    out_.append(text);
    at_ += consumed;
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(fmt::format("{}: the pattern {} {}", where_, quote(pattern_), what),
                "patterns are in Oniguruma's syntax; a few rare constructs are left out");
  }

  std::string_view pattern_;
  const std::string& where_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
};

}  // namespace

std::string oniguruma_to_pcre2(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

std::string escape_regex(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = static_cast<unsigned char>(c) >= 0x80 || (c >= '0' && c <= '9') ||
                       (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == ' ' || c == '_';
    if (c == 0) {
      out += "\\x{0}";
    } else {
      if (!plain) out.push_back('\\');
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace sluice::impl::tok
