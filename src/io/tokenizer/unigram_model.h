// Unigram: of all segmentations of a word into tokens, the one with the highest sum of scores.

#pragma once

#include <array>
#include <string>
#include <vector>

#include "io/tokenizer/byte_trie.h"
#include "io/tokenizer/model.h"

namespace sluice::impl::tok {

class UnigramModel : public Model {
 public:
  struct Options {
    std::optional<int32_t> unk_id;
    bool byte_fallback = false;
    size_t max_nodes = ByteTrie::kMaxNodes;
  };
  // The id of a token is its place in the list.
  UnigramModel(const PackedTexts& tokens, std::vector<double> scores, Options options,
               std::string where);

  void tokenize(std::string_view word, std::vector<int32_t>& ids) const override;
  const Vocab& vocab() const override { return vocab_; }
  std::string_view kind() const override { return "Unigram"; }

 private:
  struct Cut {  // the best path to one byte position
    double score = 0;
    size_t begin = 0;
    int32_t id = -1;  // -1: not reached yet
  };
  std::vector<Cut> best_cuts(std::string_view word) const;
  void append(std::string_view text, std::vector<int32_t>& ids) const;

  Vocab vocab_;
  std::vector<double> scores_;
  Options options_;
  std::string where_;
  ByteTrie trie_;
  std::array<int32_t, 256> byte_tokens_{};
  double unk_score_ = 0;
};

}  // namespace sluice::impl::tok
