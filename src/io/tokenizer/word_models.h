// Models that look words up instead of merging: WordPiece (BERT) takes the longest known prefix
// again and again, WordLevel takes the word whole.

#pragma once

#include <string>

#include "io/tokenizer/model.h"

namespace sluice::impl::tok {

class WordPieceModel : public Model {
 public:
  struct Options {
    std::string unk_token = "[UNK]";
    std::string continuing_prefix = "##";
    size_t max_chars = 100;  // a longer word is unknown as a whole
  };
  // A word costs as much as the longest token, at every place. Longer tokens are refused.
  static constexpr size_t kMaxBytes = 1024;
  WordPieceModel(Vocab vocab, Options options, std::string where);

  void tokenize(std::string_view word, std::vector<int32_t>& ids) const override;
  const Vocab& vocab() const override { return vocab_; }
  std::string_view kind() const override { return "WordPiece"; }

 private:
  Vocab vocab_;
  Options options_;
  std::string where_;
};

class WordLevelModel : public Model {
 public:
  WordLevelModel(Vocab vocab, std::string unk_token, std::string where, std::string_view kind);

  void tokenize(std::string_view word, std::vector<int32_t>& ids) const override;
  const Vocab& vocab() const override { return vocab_; }
  std::string_view kind() const override { return kind_; }

 private:
  Vocab vocab_;
  std::string unk_token_;
  std::string where_;
  std::string_view kind_;
};

}  // namespace sluice::impl::tok
