// What a Split or Replace looks for: a fixed text or a regular expression; and what becomes of
// the text between the matches.

#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/regex.h"

namespace sluice::impl {
class JsonValue;
}

namespace sluice::impl::tok {

class Pattern {
 public:
  static Pattern from_text(std::string text);
  static Pattern from_regex(std::string_view regex, const std::string& where);

  std::vector<Span> find_all(std::string_view text) const;
  // The fixed text, or null for a regular expression.
  const std::string* fixed_text() const { return regex_ ? nullptr : &text_; }

 private:
  std::string text_;
  std::shared_ptr<const Regex> regex_;
};

// {"String": "…"} or {"Regex": "…"}
Pattern read_pattern(const JsonValue& json);

// Throws Error where the text grows past most_bytes_of its length.
std::string replace_spans(std::string_view text, const std::vector<Span>& spans,
                          std::string_view content);

// The names are those of tokenizer.json.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

SplitBehavior read_split_behavior(const JsonValue& json);

// Cuts text[0, n_bytes) at the matches; empty parts are left out.
struct SplitArgs {
  size_t n_bytes;
  const std::vector<Span>& matches;  // ascending
  SplitBehavior behavior;
  bool invert = false;  // what lies between the matches counts as the delimiter
};
std::vector<Span> split_spans(const SplitArgs& args);

}  // namespace sluice::impl::tok
