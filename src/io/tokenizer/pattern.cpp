#include "io/tokenizer/pattern.h"

#include <algorithm>

#include "core/error.h"
#include "core/quote.h"
#include "io/tokenizer/growth.h"
#include "io/tokenizer/json_values.h"

namespace sluice::impl::tok {

Pattern Pattern::from_text(std::string text) {
  Pattern pattern;
  pattern.text_ = std::move(text);
  return pattern;
}

Pattern Pattern::from_regex(std::string_view regex, const std::string& where) {
  Pattern pattern;
  pattern.regex_ = std::make_shared<const Regex>(regex, where);
  return pattern;
}

std::vector<Span> Pattern::find_all(std::string_view text) const {
  if (regex_) return regex_->find_all(text);
  std::vector<Span> found;
  if (text_.empty()) return found;
  for (size_t at = text.find(text_); at != std::string_view::npos; at = text.find(text_, at)) {
    found.push_back({at, at + text_.size()});
    at += text_.size();
  }
  return found;
}

Pattern read_pattern(const JsonValue& json) {
  if (const auto text = json.find("String")) return Pattern::from_text(text->string());
  if (const auto regex = json.find("Regex")) {
    const std::string& text = regex->string();
    // A place is only looked for when the pattern does not compile.
    try {
      return Pattern::from_regex(text, json.source().label + ": " + quote(text));
    } catch (const Error&) {
      return Pattern::from_regex(text, regex->where());
    }
  }
  json.refuse("is neither a String nor a Regex");
}

std::string replace_spans(std::string_view text, const std::vector<Span>& spans,
                          std::string_view content) {
  size_t n_bytes = text.size() + spans.size() * content.size();
  for (const Span& span : spans) n_bytes -= span.end - span.begin;
  check_growth(n_bytes, most_bytes_of(text.size()));
  std::string out;
  out.reserve(n_bytes);
  size_t begin = 0;
  for (const Span& span : spans) {
    out.append(text.substr(begin, span.begin - begin)).append(content);
    begin = span.end;
  }
  return out.append(text.substr(begin));
}

SplitBehavior read_split_behavior(const JsonValue& json) {
  const std::string& name = json.string();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  json.expected("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

namespace {

struct Part {
  Span span;
  bool is_match;
};

std::vector<Part> cover(const SplitArgs& args) {
  std::vector<Part> parts;
  size_t begin = 0;
  for (const Span& match : args.matches) {
    if (begin != match.begin) parts.push_back({{begin, match.begin}, args.invert});
    parts.push_back({match, !args.invert});
    begin = match.end;
  }
  if (begin != args.n_bytes) parts.push_back({{begin, args.n_bytes}, args.invert});
  return parts;
}

// `joins(part, previous)` says whether a part is added to the one before it in this order.
template <typename Joins>
std::vector<Span> join(const std::vector<Part>& parts, const Joins& joins) {
  std::vector<Span> out;
  bool previous = false;  // whether the part before was a match
  for (const Part& part : parts) {
    if (!out.empty() && joins(part.is_match, previous)) {
      out.back() = {std::min(out.back().begin, part.span.begin),
                    std::max(out.back().end, part.span.end)};
    } else {
      out.push_back(part.span);
    }
    previous = part.is_match;
  }
  return out;
}

std::vector<Span> arrange(std::vector<Part> parts, SplitBehavior behavior) {
  const auto lone_match = [](bool is_match, bool previous) { return is_match && !previous; };
  switch (behavior) {
    case SplitBehavior::kRemoved:
      std::erase_if(parts, [](const Part& part) { return part.is_match; });
      return join(parts, [](bool, bool) { return false; });
    case SplitBehavior::kIsolated:
      return join(parts, [](bool, bool) { return false; });
    case SplitBehavior::kContiguous:
      return join(parts, [](bool is_match, bool previous) { return is_match == previous; });
    case SplitBehavior::kMergedWithPrevious:
      return join(parts, lone_match);
    case SplitBehavior::kMergedWithNext: {
      std::reverse(parts.begin(), parts.end());
      std::vector<Span> out = join(parts, lone_match);
      std::reverse(out.begin(), out.end());
      return out;
    }
  }
  return {};
}

}  // namespace

std::vector<Span> split_spans(const SplitArgs& args) {
  std::vector<Span> spans = arrange(cover(args), args.behavior);
  std::erase_if(spans, [](const Span& span) { return span.begin == span.end; });
  return spans;
}

}  // namespace sluice::impl::tok
