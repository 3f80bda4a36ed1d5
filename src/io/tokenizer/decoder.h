// Token texts back to running text. A decoder is a chain of stages; text flows through it token
// by token, so decoding a growing list costs the same for every token.

#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::impl {
class JsonValue;
}

namespace sluice::impl::tok {

// One stage at work. A token arrives as any number of parts and an end.
class DecodeStage {
 public:
  explicit DecodeStage(DecodeStage* next) : next_(next) {}
  virtual ~DecodeStage() = default;
  virtual void part(std::string_view text) = 0;
  virtual void end_token() = 0;
  virtual void finish() { next_->finish(); }

 protected:
  void emit(std::string_view token) {
    next_->part(token);
    next_->end_token();
  }
  DecodeStage* next_;  // null only at the end of the chain
};

// The recipe of a chain: immutable, shared by all decodings of a tokenizer.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // Puts its stages in front of `next`; the last one added is the entrance.
  virtual void open(DecodeStage* next, std::vector<std::unique_ptr<DecodeStage>>& stages) const = 0;
};

std::unique_ptr<Decoder> make_decoder(const JsonValue& json);
std::unique_ptr<Decoder> make_space_joiner();        // no decoder: tokens with spaces between
std::unique_ptr<Decoder> make_byte_level_decoder();  // byte alphabet -> UTF-8
// SentencePiece: U+2581 and byte tokens to text, and the space put before the text taken away.
std::unique_ptr<Decoder> make_sentencepiece_decoder(bool strip_first_space);

// A chain at work on one list of tokens.
class DecodeRun {
 public:
  explicit DecodeRun(const Decoder& decoder);
  ~DecodeRun();
  std::string push(std::string_view token);  // text that became certain, whole characters only
  std::string finish();

 private:
  class Sink;
  std::unique_ptr<Sink> sink_;
  std::vector<std::unique_ptr<DecodeStage>> stages_;
  DecodeStage* entrance_;
};

}  // namespace sluice::impl::tok
