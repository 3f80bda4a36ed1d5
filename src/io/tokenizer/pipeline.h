// The tokenizer every loader builds: added tokens, normalizer, pre-tokenizer, model, template, and
// the decoder.

#pragma once

#include <memory>

#include "io/tokenizer/added_tokens.h"
#include "io/tokenizer/decoder.h"
#include "io/tokenizer/model.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/post_processor.h"
#include "io/tokenizer/pre_tokenizer.h"
#include "io/tokenizer/tokenizer.h"

namespace sluice::impl::tok {

struct PipelineParts {
  AddedTokens added;
  std::unique_ptr<Normalizer> normalizer;       // may be null
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // may be null: the text is one word
  std::unique_ptr<Model> model;
  PostProcessor post_processor;
  std::unique_ptr<Decoder> decoder;
  std::optional<int32_t> bos, eos;
};

class Pipeline : public Tokenizer {
 public:
  explicit Pipeline(PipelineParts parts);

  std::vector<int32_t> encode(std::string_view text, bool add_special) const override;
  std::vector<int32_t> encode_pieces(const PieceText& text) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override;
  int32_t vocab_size() const override;
  std::optional<int32_t> id_of(std::string_view token) const override;
  std::string token_of(int32_t id) const override;
  bool is_special(int32_t id) const override;
  std::string_view kind() const override { return parts_.model->kind(); }
  std::optional<int32_t> bos() const override { return parts_.bos; }
  std::optional<int32_t> eos() const override { return parts_.eos; }

 private:
  class WordCache;
  class Stream;
  std::unique_ptr<DecodeStream> open_stream(bool skip_special) const override;
  // The text of a token to be decoded; nothing when there is nothing to say. Throws for an id
  // outside the vocabulary.
  std::optional<std::string_view> text_to_decode(int32_t id, bool skip_special) const;
  std::optional<std::string_view> find_text(int32_t id) const;
  // at_start: the text is the beginning of the input.
  void encode_added(std::string_view text, bool at_start, WordCache& cache,
                    std::vector<int32_t>& ids) const;
  void encode_text(NormalText text, WordCache& cache, std::vector<int32_t>& ids) const;
  void encode_words(NormalText text, WordCache& cache, std::vector<int32_t>& ids) const;

  PipelineParts parts_;
};

}  // namespace sluice::impl::tok
