// Text to token ids and back. One pipeline serves every kind: added tokens are cut out first, the
// rest goes through normalizer, pre-tokenizer and model, and a template adds special tokens.

#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::impl {

struct GgufFile;
class DecodeStream;

// A part of a text whose parts are not trusted alike.
struct TextPiece {
  std::string text;
  bool plain = false;  // someone's words: what reads like a special token is none
};

struct PieceText {
  std::span<const TextPiece> pieces;
  // Texts that are no tokens in plain pieces, as well as special tokens.
  std::span<const std::string> markers;
  bool continues = false;  // other text stands before it
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // add_special: put in what the tokenizer's template asks for (<s>, [CLS] … [SEP]).
  // Special tokens written out in the text are recognised with and without it, as Hugging Face
  // does.
  virtual std::vector<int32_t> encode(std::string_view text, bool add_special) const = 0;
  // Encodes the pieces as the one text that they make, without a template. What would be a special
  // token in a plain piece is cut behind its first character.
  virtual std::vector<int32_t> encode_pieces(const PieceText& text) const = 0;
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special) const = 0;

  virtual int32_t vocab_size() const = 0;  // largest id + 1, added tokens included
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  // The token as the vocabulary spells it; empty for an id without one.
  virtual std::string token_of(int32_t id) const = 0;
  virtual bool is_special(int32_t id) const = 0;
  virtual std::string_view kind() const = 0;  // "byte-level BPE", "SentencePiece BPE", …

  // From tokenizer_config.json, special_tokens_map.json or GGUF; nothing when not stated.
  virtual std::optional<int32_t> bos() const = 0;
  virtual std::optional<int32_t> eos() const = 0;

 private:
  friend class StreamDecoder;
  virtual std::unique_ptr<DecodeStream> open_stream(bool skip_special) const;
};

// Reads tokenizer.json (and tokenizer_config.json where present) from a model folder; without one,
// the vocab.json and merges.txt of GPT-2 and OPT or the vocab.txt of ESM-2.
std::unique_ptr<Tokenizer> open_tokenizer(const std::filesystem::path& folder);
// From a GGUF file's metadata: tokenizer.ggml.model `gpt2` or `llama`.
std::unique_ptr<Tokenizer> open_tokenizer(const GgufFile& file);

// Decodes a growing list of ids and returns only whole UTF-8 characters, so that a character
// spread over several tokens appears once it is complete.
class StreamDecoder {
 public:
  // The tokenizer must outlive the decoder.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;
  std::string push(int32_t id);  // text that became certain with this id
  std::string finish();          // what is left, invalid bytes as U+FFFD

 private:
  std::unique_ptr<DecodeStream> stream_;
};

}  // namespace sluice::impl
