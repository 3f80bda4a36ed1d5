// SentencePiece BPE as GGUF files store it: no merge list; two neighbours join when their text is
// a token, the highest score first. Unknown characters fall back to bytes.

#pragma once

#include <array>
#include <string>
#include <vector>

#include "io/tokenizer/bpe_merge.h"
#include "io/tokenizer/byte_trie.h"
#include "io/tokenizer/model.h"

namespace sluice::impl::tok {

// The numbers are those of tokenizer.ggml.token_type.
enum class TokenType {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct ScoredToken {
  std::string_view text;
  double score = 0;
  TokenType type = TokenType::kNormal;
};

class ScoreBpeModel : public Model {
 public:
  // The id of a token is its place in the list.
  ScoreBpeModel(const std::vector<ScoredToken>& tokens, std::string where);

  void tokenize(std::string_view word, std::vector<int32_t>& ids) const override;
  bool can_cut_at_metaspace() const override { return can_cut_; }
  const Vocab& vocab() const override { return vocab_; }
  std::string_view kind() const override { return "SentencePiece BPE"; }

 private:
  std::vector<Symbol> first_symbols(std::string_view word) const;
  void append_unknown(std::string_view text, std::vector<int32_t>& ids, bool& after_unknown) const;

  Vocab vocab_;
  std::string where_;
  Vocab pieces_;                // what neighbours may join to
  std::vector<double> scores_;  // by id
  ByteTrie user_defined_;
  std::array<int32_t, 256> byte_tokens_{};
  int32_t unk_id_ = -1;
  size_t longest_piece_ = 0;
  bool can_cut_ = false;
};

}  // namespace sluice::impl::tok
