#include "io/tokenizer/pre_tokenizer.h"

#include <functional>
#include <utility>

#include "io/tokenizer/byte_alphabet.h"
#include "io/tokenizer/char_class.h"
#include "io/tokenizer/growth.h"
#include "io/tokenizer/json_values.h"
#include "io/tokenizer/pattern.h"
#include "io/tokenizer/utf8.h"

namespace sluice::impl::tok {

namespace {

constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Appends the parts of one piece; only the first of them can be at the start of the input.
void append_spans(Piece&& piece, const std::vector<Span>& spans, std::vector<Piece>& out) {
  if (spans.size() == 1 && spans[0].begin == 0 && spans[0].end == piece.text.size()) {
    out.push_back(std::move(piece));
    return;
  }
  for (const Span& span : spans) {
    out.push_back(
        {piece.text.substr(span.begin, span.end - span.begin), piece.at_start && span.begin == 0});
  }
}

// Cuts each piece at the spans find(text) gives.
class Splitter : public PreTokenizer {
 public:
  using Find = std::function<std::vector<Span>(std::string_view)>;
  Splitter(Find find, SplitBehavior behavior, bool invert = false)
      : find_(std::move(find)), behavior_(behavior), invert_(invert) {}

  void apply(std::vector<Piece>& pieces) const override {
    std::vector<Piece> out;
    out.reserve(pieces.size());
    for (Piece& piece : pieces) {
      const std::vector<Span> matches = find_(piece.text);
      const auto spans = split_spans({.n_bytes = piece.text.size(),
                                      .matches = matches,
                                      .behavior = behavior_,
                                      .invert = invert_});
      append_spans(std::move(piece), spans, out);
    }
    pieces = std::move(out);
  }

 private:
  Find find_;
  SplitBehavior behavior_;
  bool invert_;
};

std::unique_ptr<PreTokenizer> split_on(Pattern pattern, SplitBehavior behavior,
                                       bool invert = false) {
  return std::make_unique<Splitter>(
      [pattern = std::move(pattern)](std::string_view text) { return pattern.find_all(text); },
      behavior, invert);
}

std::unique_ptr<PreTokenizer> split_on_chars(bool (*is_match)(char32_t), SplitBehavior behavior) {
  const auto find = [is_match](std::string_view text) {
    std::vector<Span> found;
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = decode_char(text, at);
      if (is_match(c.code)) found.push_back({at, at + c.n_bytes});
      at += c.n_bytes;
    }
    return found;
  };
  return std::make_unique<Splitter>(find, behavior);
}

// Runs of word characters and runs of anything else but space.
std::vector<Span> find_words(std::string_view text) {
  std::vector<Span> found;
  enum { kSpace, kWord, kOther } previous = kSpace;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_char(text, at);
    const auto now = is_word(c.code) ? kWord : is_whitespace(c.code) ? kSpace : kOther;
    if (now != kSpace && now == previous) {
      found.back().end += c.n_bytes;
    } else if (now != kSpace) {
      found.push_back({at, at + c.n_bytes});
    }
    previous = now;
    at += c.n_bytes;
  }
  return found;
}

size_t n_bytes_of(const std::vector<Piece>& pieces) {
  size_t n = 0;
  for (const Piece& piece : pieces) n += piece.text.size();
  return n;
}

class PreTokenizerSequence : public PreTokenizer {
 public:
  void add(std::unique_ptr<PreTokenizer> part) { parts_.push_back(std::move(part)); }
  void apply(std::vector<Piece>& pieces) const override {
    const size_t most = most_bytes_of(n_bytes_of(pieces));
    for (const auto& part : parts_) {
      part->apply(pieces);
      check_growth(n_bytes_of(pieces), most);
    }
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

class PrefixSpace : public PreTokenizer {
 public:
  void apply(std::vector<Piece>& pieces) const override {
    for (Piece& piece : pieces) {
      if (!piece.text.starts_with(' ')) piece.text.insert(0, 1, ' ');
    }
  }
};

class ByteAlphabet : public PreTokenizer {
 public:
  void apply(std::vector<Piece>& pieces) const override {
    for (Piece& piece : pieces) piece.text = bytes_to_alphabet(piece.text);
  }
};

class Metaspace : public PreTokenizer {
 public:
  enum class Prepend { kFirst, kAlways, kNever };
  Metaspace(std::string replacement, Prepend prepend, bool split)
      : replacement_(std::move(replacement)),
        prepend_(prepend),
        split_(split ? split_on(Pattern::from_text(replacement_), SplitBehavior::kMergedWithNext)
                     : nullptr) {}

  void apply(std::vector<Piece>& pieces) const override {
    const Pattern space = Pattern::from_text(" ");
    for (Piece& piece : pieces) {
      piece.text = replace_spans(piece.text, space.find_all(piece.text), replacement_);
      const bool wanted =
          prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && piece.at_start);
      if (wanted && !piece.text.starts_with(replacement_)) piece.text.insert(0, replacement_);
    }
    if (split_) split_->apply(pieces);
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  std::unique_ptr<PreTokenizer> split_;
};

std::unique_ptr<PreTokenizer> make_metaspace_cuts(const JsonValue& json) {
  using Where = Metaspace::Prepend;
  Where prepend = json.boolean_or("add_prefix_space", true) ? Where::kAlways : Where::kNever;
  if (const auto scheme = json.find("prepend_scheme")) {
    const std::string& name = scheme->string();
    if (name == "first") {
      prepend = Where::kFirst;
    } else if (name == "always") {
      prepend = Where::kAlways;
    } else if (name == "never") {
      prepend = Where::kNever;
    } else {
      scheme->expected("first, always or never");
    }
  }
  return std::make_unique<Metaspace>(to_utf8(char_or(json, "replacement", 0x2581)), prepend,
                                     json.boolean_or("split", true));
}

std::unique_ptr<PreTokenizer> make_byte_level(const JsonValue& json) {
  auto sequence = std::make_unique<PreTokenizerSequence>();
  if (json.boolean_or("add_prefix_space", true)) sequence->add(std::make_unique<PrefixSpace>());
  if (json.boolean_or("use_regex", true)) {
    sequence->add(
        split_on(Pattern::from_regex(kGpt2Regex, json.source().label), SplitBehavior::kIsolated));
  }
  sequence->add(std::make_unique<ByteAlphabet>());
  return sequence;
}

std::unique_ptr<PreTokenizer> make_pre_tokenizer_sequence(const JsonValue& json) {
  const JsonValue parts = json.at("pretokenizers");
  auto sequence = std::make_unique<PreTokenizerSequence>();
  for (size_t i = 0; i < parts.array().size(); ++i) {
    sequence->add(make_pre_tokenizer(parts.element(i)));
  }
  return sequence;
}

std::unique_ptr<PreTokenizer> make_bert() {
  auto sequence = std::make_unique<PreTokenizerSequence>();
  sequence->add(split_on_chars(is_whitespace, SplitBehavior::kRemoved));
  sequence->add(split_on_chars(is_punctuation, SplitBehavior::kIsolated));
  return sequence;
}

std::unique_ptr<PreTokenizer> make_split(const JsonValue& json) {
  return split_on(read_pattern(json.at("pattern")), read_split_behavior(json.at("behavior")),
                  json.boolean_or("invert", false));
}

}  // namespace

std::unique_ptr<PreTokenizer> make_python_whitespace_split() {
  return split_on_chars([](char32_t c) { return is_whitespace(c) || (c >= 0x1C && c <= 0x1F); },
                        SplitBehavior::kRemoved);
}

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonValue& json) {
  const std::string& type = type_of(json);
  if (type == "Sequence") return make_pre_tokenizer_sequence(json);
  if (type == "ByteLevel") return make_byte_level(json);
  if (type == "Split") return make_split(json);
  if (type == "Metaspace") return make_metaspace_cuts(json);
  if (type == "BertPreTokenizer") return make_bert();
  if (type == "WhitespaceSplit") return split_on_chars(is_whitespace, SplitBehavior::kRemoved);
  if (type == "Whitespace") {
    return std::make_unique<Splitter>(find_words, SplitBehavior::kRemoved, /*invert=*/true);
  }
  if (type == "Digits") {
    const bool single = json.boolean_or("individual_digits", false);
    return split_on_chars(is_numeric,
                          single ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  if (type == "Punctuation") {
    const auto behavior = json.find("behavior");
    return split_on_chars(is_punctuation,
                          behavior ? read_split_behavior(*behavior) : SplitBehavior::kIsolated);
  }
  refuse_type(json, type);
}

}  // namespace sluice::impl::tok
