#include "io/tokenizer/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "core/error.h"
#include "io/tokenizer/char_class.h"
#include "io/tokenizer/growth.h"
#include "io/tokenizer/json_values.h"
#include "io/tokenizer/pattern.h"
#include "io/tokenizer/utf8.h"

namespace sluice::impl::tok {

namespace {

template <typename Visit>
void for_each_char(std::string_view text, const Visit& visit) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_char(text, at);
    visit(c.code);
    at += c.n_bytes;
  }
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::string to_unicode_form(std::string_view text, utf8proc_option_t options) {
  if (is_ascii(text)) return std::string(text);
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &out, options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, &std::free);
  if (n < 0)
    throw Error(fmt::format("cannot normalize the text: {}", utf8proc_errmsg(n)),
                "is the text too long?");
  return {reinterpret_cast<const char*>(out), static_cast<size_t>(n)};
}

constexpr auto kNfc = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
constexpr auto kNfd = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
constexpr auto kNfkc = static_cast<utf8proc_option_t>(kNfc | UTF8PROC_COMPAT);
constexpr auto kNfkd = static_cast<utf8proc_option_t>(kNfd | UTF8PROC_COMPAT);

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(utf8proc_option_t options) : options_(options) {}
  void apply(NormalText& text) const override { text.text = to_unicode_form(text.text, options_); }

 private:
  utf8proc_option_t options_;
};

// Keeps, drops or rewrites one character at a time: rewrite(c, out) appends what stands for c.
template <typename Rewrite>
void rewrite_chars(NormalText& text, const Rewrite& rewrite) {
  std::string out;
  out.reserve(text.text.size());
  bool first = true;
  for_each_char(text.text, [&](char32_t c) {
    rewrite(c, out);
    if (first && out.empty()) text.at_start = false;
    first = false;
  });
  text.text = std::move(out);
}

class Lowercase : public Normalizer {
 public:
  void apply(NormalText& text) const override {
    rewrite_chars(text, [](char32_t c, std::string& out) { append_lower(out, c); });
  }
};

class StripAccents : public Normalizer {
 public:
  void apply(NormalText& text) const override {
    rewrite_chars(text, [](char32_t c, std::string& out) {
      if (!is_mark(c)) append_utf8(out, c);
    });
  }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(NormalText& text) const override {
    size_t begin = std::string::npos, end = 0;
    for (size_t at = 0; at < text.text.size();) {
      const Utf8Char c = decode_char(text.text, at);
      if (!is_whitespace(c.code)) {
        begin = std::min(begin, at);
        end = at + c.n_bytes;
      }
      at += c.n_bytes;
    }
    begin = left_ ? std::min(begin, text.text.size()) : 0;
    end = right_ ? std::max(begin, end) : text.text.size();
    if (begin > 0) text.at_start = false;
    text.text = text.text.substr(begin, end - begin);
  }

 private:
  bool left_, right_;
};

class Bert : public Normalizer {
 public:
  struct Options {
    bool clean_text = true, spaced_ideographs = true, strip_accents = true, lowercase = true;
  };
  explicit Bert(Options options) : options_(options) {}
  void apply(NormalText& text) const override {
    if (options_.clean_text) {
      rewrite_chars(text, [](char32_t c, std::string& out) {
        if (!is_bert_control(c)) append_utf8(out, is_whitespace(c) ? U' ' : c);
      });
    }
    if (options_.spaced_ideographs) {
      rewrite_chars(text, [](char32_t c, std::string& out) {
        const bool spaced = is_cjk_ideograph(c);
        if (spaced) out.push_back(' ');
        append_utf8(out, c);
        if (spaced) out.push_back(' ');
      });
    }
    if (options_.strip_accents) {
      text.text = to_unicode_form(text.text, kNfd);
      rewrite_chars(text, [](char32_t c, std::string& out) {
        if (!is_nonspacing_mark(c)) append_utf8(out, c);
      });
    }
    if (options_.lowercase) Lowercase().apply(text);
  }

 private:
  Options options_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string text) : prefix_(std::move(text)) {}
  void apply(NormalText& text) const override {
    if (text.text.empty()) return;
    check_growth(text.text.size() + prefix_.size(), most_bytes_of(text.text.size()));
    text.text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class Replace : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(NormalText& text) const override {
    const std::vector<Span> matches = pattern_.find_all(text.text);
    if (!matches.empty() && matches[0].begin == 0) {
      const std::string_view first = std::string_view(text.text).substr(0, matches[0].end);
      const bool one_char = !first.empty() && decode_char(first, 0).n_bytes == first.size();
      if (content_.empty() || !one_char) text.at_start = false;
    }
    text.text = replace_spans(text.text, matches, content_);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> parts)
      : parts_(std::move(parts)) {}
  void apply(NormalText& text) const override {
    const size_t most = most_bytes_of(text.text.size());
    for (const auto& part : parts_) {
      part->apply(text);
      check_growth(text.text.size(), most);
    }
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

std::unique_ptr<Normalizer> make_bert(const JsonValue& json) {
  Bert::Options options;
  options.clean_text = json.boolean_or("clean_text", true);
  options.spaced_ideographs = json.boolean_or("handle_chinese_chars", true);
  options.lowercase = json.boolean_or("lowercase", true);
  options.strip_accents = json.boolean_or("strip_accents", options.lowercase);
  return std::make_unique<Bert>(options);
}

std::unique_ptr<Normalizer> make_normalizer_sequence(const JsonValue& json) {
  const JsonValue parts = json.at("normalizers");
  std::vector<std::unique_ptr<Normalizer>> made;
  for (size_t i = 0; i < parts.array().size(); ++i) {
    made.push_back(make_normalizer(parts.element(i)));
  }
  return std::make_unique<NormalizerSequence>(std::move(made));
}

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const JsonValue& json) {
  const std::string& type = type_of(json);
  if (type == "Sequence") return make_normalizer_sequence(json);
  if (type == "NFC") return std::make_unique<UnicodeForm>(kNfc);
  if (type == "NFD") return std::make_unique<UnicodeForm>(kNfd);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(kNfkc);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(kNfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Strip") {
    return std::make_unique<Strip>(json.boolean_or("strip_left", true),
                                   json.boolean_or("strip_right", true));
  }
  if (type == "BertNormalizer") return make_bert(json);
  if (type == "Prepend") return std::make_unique<Prepend>(json.at("prepend").string());
  if (type == "Replace") {
    return std::make_unique<Replace>(read_pattern(json.at("pattern")), json.at("content").string());
  }
  refuse_type(json, type);
}

}  // namespace sluice::impl::tok
