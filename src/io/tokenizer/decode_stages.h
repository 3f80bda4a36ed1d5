// The stages a decoder is made of.

#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "io/tokenizer/decoder.h"
#include "io/tokenizer/pattern.h"

namespace sluice::impl::tok {

// Rewrites whole tokens: rewrite(token, index) -> token.
class MapTokens : public DecodeStage {
 public:
  using Rewrite = std::function<std::string(std::string_view token, size_t index)>;
  MapTokens(DecodeStage* next, Rewrite rewrite) : DecodeStage(next), rewrite_(std::move(rewrite)) {}
  void part(std::string_view text) override { token_ += text; }
  void end_token() override;

 private:
  Rewrite rewrite_;
  std::string token_;
  size_t index_ = 0;
};

// Puts a text between tokens.
class JoinTokens : public DecodeStage {
 public:
  JoinTokens(DecodeStage* next, std::string between)
      : DecodeStage(next), between_(std::move(between)) {}
  void part(std::string_view text) override;
  void end_token() override;

 private:
  void begin();
  std::string between_;
  bool inside_ = false;
  bool any_ = false;
};

// All tokens become one.
class FuseTokens : public DecodeStage {
 public:
  using DecodeStage::DecodeStage;
  void part(std::string_view text) override { next_->part(text); }
  void end_token() override {}
  void finish() override;
};

// The byte alphabet to bytes to UTF-8; all tokens become one.
class DecodeAlphabet : public DecodeStage {
 public:
  using DecodeStage::DecodeStage;
  void part(std::string_view text) override { token_ += text; }
  void end_token() override;
  void finish() override;

 private:
  std::string token_;
  std::string bytes_;  // begin a character that is not complete yet
};

// Runs of <0x00> … <0xFF> to text. A run that is not valid UTF-8 as a whole becomes one U+FFFD per
// byte (Hugging Face), or only its invalid bytes do (SentencePiece).
class DecodeByteTokens : public DecodeStage {
 public:
  enum class Invalid { kWholeRun, kInvalidBytes };
  DecodeByteTokens(DecodeStage* next, Invalid invalid) : DecodeStage(next), invalid_(invalid) {}
  void part(std::string_view text) override { token_ += text; }
  void end_token() override;
  void finish() override;

 private:
  void end_run();
  void emit_complete();
  Invalid invalid_;
  std::string token_;
  std::string run_;
};

// Takes up to n_start characters off the front of a token and n_stop off its end.
struct StripCounts {
  std::string content;  // one character
  size_t n_start = 0;
  size_t n_stop = 0;
};
class StripTokens : public DecodeStage {
 public:
  StripTokens(DecodeStage* next, const StripCounts& counts) : DecodeStage(next), counts_(counts) {}
  void part(std::string_view text) override;
  void end_token() override;

 private:
  StripCounts counts_;
  std::string held_;  // may yet be the end of the token
  size_t n_stripped_ = 0;
  bool at_front_ = true;  // nothing but stripped characters so far
};

// Replaces a fixed text, also where it crosses parts of one token.
class ReplaceText : public DecodeStage {
 public:
  ReplaceText(DecodeStage* next, std::string text, std::string content)
      : DecodeStage(next), text_(std::move(text)), content_(std::move(content)) {}
  void part(std::string_view text) override;
  void end_token() override;

 private:
  std::string text_, content_;
  std::string held_;  // shorter than text_
};

// Ends words at a suffix: it becomes a space, or nothing in the last token.
class EndWords : public DecodeStage {
 public:
  EndWords(DecodeStage* next, std::string suffix) : DecodeStage(next), suffix_(std::move(suffix)) {}
  void part(std::string_view text) override { token_ += text; }
  void end_token() override;
  void finish() override;

 private:
  void release(std::string_view in_place_of_suffix);
  std::string suffix_;
  std::string token_, previous_;
  bool has_previous_ = false;
};

}  // namespace sluice::impl::tok
