#include "io/tokenizer/decoder.h"

#include <utility>

#include "io/tokenizer/decode_stages.h"
#include "io/tokenizer/json_values.h"
#include "io/tokenizer/metaspace.h"
#include "io/tokenizer/utf8.h"

namespace sluice::impl::tok {

namespace {

using Stages = std::vector<std::unique_ptr<DecodeStage>>;
using MakeStage = std::function<std::unique_ptr<DecodeStage>(DecodeStage* next)>;

class SimpleDecoder : public Decoder {
 public:
  explicit SimpleDecoder(MakeStage make) : make_(std::move(make)) {}
  void open(DecodeStage* next, Stages& stages) const override { stages.push_back(make_(next)); }

 private:
  MakeStage make_;
};

class SequenceDecoder : public Decoder {
 public:
  void add(std::unique_ptr<Decoder> part) { parts_.push_back(std::move(part)); }
  void open(DecodeStage* next, Stages& stages) const override {
    for (auto it = parts_.rbegin(); it != parts_.rend(); ++it) {
      (*it)->open(next, stages);
      next = stages.empty() ? next : stages.back().get();
    }
  }

 private:
  std::vector<std::unique_ptr<Decoder>> parts_;
};

template <typename Stage, typename... Args>
std::unique_ptr<Decoder> simple(Args... args) {
  return std::make_unique<SimpleDecoder>(
      [args...](DecodeStage* next) { return std::make_unique<Stage>(next, args...); });
}

std::string replace_all(std::string_view text, std::string from, std::string_view to) {
  return replace_spans(text, Pattern::from_text(std::move(from)).find_all(text), to);
}

// The spaces English does not put before punctuation and contractions, in BERT's order.
std::string clean_up(std::string text) {
  static constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) text = replace_all(text, std::string(from), to);
  return text;
}

std::unique_ptr<Decoder> make_wordpiece(const JsonValue& json) {
  const std::string prefix = json.string_or("prefix", "##");
  const bool cleanup = json.boolean_or("cleanup", true);
  return simple<MapTokens>([prefix, cleanup](std::string_view token, size_t index) {
    std::string text;
    if (index == 0) {
      text = token;
    } else if (token.starts_with(prefix)) {
      text = token.substr(prefix.size());
    } else {
      text.push_back(' ');
      text.append(token);
    }
    return cleanup ? clean_up(std::move(text)) : text;
  });
}

std::unique_ptr<Decoder> make_metaspace(const JsonValue& json) {
  const std::string mark = to_utf8(char_or(json, "replacement", 0x2581));
  bool drop_first = json.boolean_or("add_prefix_space", true);
  if (const auto scheme = json.find("prepend_scheme")) drop_first = scheme->string() != "never";
  return simple<MapTokens>([mark, drop_first](std::string_view token, size_t index) {
    return replace_all(token, mark, index == 0 && drop_first ? "" : " ");
  });
}

std::unique_ptr<Decoder> make_strip(const JsonValue& json) {
  const auto count = [&json](std::string_view key) {
    return static_cast<size_t>(json.integer_or(key, 0, 0, 1024));
  };
  return simple<StripTokens>(StripCounts{.content = to_utf8(char_or(json, "content", U' ')),
                                         .n_start = count("start"),
                                         .n_stop = count("stop")});
}

std::unique_ptr<Decoder> make_replace(const JsonValue& json) {
  const Pattern pattern = read_pattern(json.at("pattern"));
  const std::string content = json.at("content").string();
  if (const std::string* text = pattern.fixed_text()) {
    if (text->empty()) json.at("pattern").refuse("is empty");
    return simple<ReplaceText>(*text, content);
  }
  return simple<MapTokens>([pattern, content](std::string_view token, size_t) {
    return replace_spans(token, pattern.find_all(token), content);
  });
}

std::unique_ptr<Decoder> make_sequence(const JsonValue& json) {
  const JsonValue parts = json.at("decoders");
  auto sequence = std::make_unique<SequenceDecoder>();
  for (size_t i = 0; i < parts.array().size(); ++i) {
    sequence->add(make_decoder(parts.element(i)));
  }
  return sequence;
}

}  // namespace

std::unique_ptr<Decoder> make_decoder(const JsonValue& json) {
  const std::string& type = type_of(json);
  if (type == "Sequence") return make_sequence(json);
  if (type == "ByteLevel") return make_byte_level_decoder();
  if (type == "WordPiece") return make_wordpiece(json);
  if (type == "Metaspace") return make_metaspace(json);
  if (type == "ByteFallback") {
    return simple<DecodeByteTokens>(DecodeByteTokens::Invalid::kWholeRun);
  }
  if (type == "Fuse") return simple<FuseTokens>();
  if (type == "Strip") return make_strip(json);
  if (type == "Replace") return make_replace(json);
  if (type == "BPEDecoder") return simple<EndWords>(json.string_or("suffix", "</w>"));
  refuse_type(json, type);
}

std::unique_ptr<Decoder> make_space_joiner() { return simple<JoinTokens>(std::string(" ")); }

std::unique_ptr<Decoder> make_byte_level_decoder() { return simple<DecodeAlphabet>(); }

std::unique_ptr<Decoder> make_sentencepiece_decoder(bool strip_first_space) {
  auto sequence = std::make_unique<SequenceDecoder>();
  sequence->add(simple<ReplaceText>(std::string(kMetaspace), std::string(" ")));
  sequence->add(simple<DecodeByteTokens>(DecodeByteTokens::Invalid::kInvalidBytes));
  sequence->add(simple<FuseTokens>());
  if (strip_first_space) {
    sequence->add(simple<StripTokens>(StripCounts{.content = " ", .n_start = 1, .n_stop = 0}));
  }
  return sequence;
}

// Collects what leaves the chain.
class DecodeRun::Sink : public DecodeStage {
 public:
  Sink() : DecodeStage(nullptr) {}
  void part(std::string_view text) override { text_ += text; }
  void end_token() override {}
  void finish() override {}
  std::string& text() { return text_; }

 private:
  std::string text_;
};

DecodeRun::DecodeRun(const Decoder& decoder) : sink_(std::make_unique<Sink>()) {
  decoder.open(sink_.get(), stages_);
  entrance_ = stages_.empty() ? sink_.get() : stages_.back().get();
}

DecodeRun::~DecodeRun() = default;

std::string DecodeRun::push(std::string_view token) {
  entrance_->part(token);
  entrance_->end_token();
  std::string& text = sink_->text();
  const size_t n = text.size() - incomplete_suffix(text);
  std::string out = text.substr(0, n);
  text.erase(0, n);
  return out;
}

std::string DecodeRun::finish() {
  entrance_->finish();
  return repair_utf8(std::exchange(sink_->text(), {}));
}

}  // namespace sluice::impl::tok
