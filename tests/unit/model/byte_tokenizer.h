// A tokenizer whose tokens are bytes: id = byte - first byte. Bytes outside of the vocabulary are
// a mistake in the test.

#pragma once

#include <stdexcept>

#include "io/tokenizer/decode_stream.h"
#include "io/tokenizer/tokenizer.h"

namespace sluice::impl::test {

struct ByteTokenizerOptions {
  int32_t first_byte = 0;
  int32_t vocab = 256;
  std::optional<int32_t> bos = {}, eos = {};
};

class ByteTokenizer : public Tokenizer {
 public:
  explicit ByteTokenizer(const ByteTokenizerOptions& options) : options_(options) {}

  std::vector<int32_t> encode(std::string_view text, bool add_special) const override {
    std::vector<int32_t> ids;
    if (add_special && options_.bos) ids.push_back(*options_.bos);
    for (const char c : text) {
      ids.push_back(static_cast<unsigned char>(c) - options_.first_byte);
      if (ids.back() < 0 || ids.back() >= options_.vocab)
        throw std::out_of_range("byte outside of the test's vocabulary");
    }
    return ids;
  }
  std::vector<int32_t> encode_pieces(const PieceText& text) const override {
    std::string all;
    for (const TextPiece& piece : text.pieces) all += piece.text;
    return encode(all, /*add_special=*/false);
  }
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::string text;
    for (const int32_t id : ids)
      if (!skip_special || !is_special(id)) text += token_of(id);
    return text;
  }
  int32_t vocab_size() const override { return options_.vocab; }
  std::optional<int32_t> id_of(std::string_view token) const override {
    return token.size() == 1 ? std::optional(encode(token, false).front()) : std::nullopt;
  }
  std::string token_of(int32_t id) const override {
    return std::string(1, static_cast<char>(id + options_.first_byte));
  }
  bool is_special(int32_t id) const override { return id == options_.bos || id == options_.eos; }
  std::string_view kind() const override { return "bytes"; }
  std::optional<int32_t> bos() const override { return options_.bos; }
  std::optional<int32_t> eos() const override { return options_.eos; }

 private:
  class Stream : public DecodeStream {
   public:
    Stream(const ByteTokenizer& tokenizer, bool skip_special)
        : tokenizer_(tokenizer), skip_special_(skip_special) {}
    std::string push(int32_t id) override { return tokenizer_.decode({&id, 1}, skip_special_); }
    std::string finish() override { return {}; }

   private:
    const ByteTokenizer& tokenizer_;
    bool skip_special_;
  };
  std::unique_ptr<DecodeStream> open_stream(bool skip_special) const override {
    return std::make_unique<Stream>(*this, skip_special);
  }

  ByteTokenizerOptions options_;
};

}  // namespace sluice::impl::test
