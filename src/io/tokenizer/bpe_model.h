// BPE by merge rank: byte-level (GPT-2, Llama 3, Qwen 2) and SentencePiece style with byte
// fallback (Llama 2).

#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "io/tokenizer/bpe_merge.h"
#include "io/tokenizer/model.h"

namespace sluice::impl::tok {

struct BpeOptions {
  std::optional<std::string> unk_token;
  std::string continuing_prefix;  // before every symbol of a word but the first
  std::string word_suffix;        // after the last
  bool fuse_unk = false;          // neighbouring unknown characters become one token
  bool byte_fallback = false;     // an unknown character becomes tokens <0x00> … <0xFF>
  bool ignore_merges = false;     // a word that is a token is taken whole
  std::string_view kind = "BPE";
};

class BpeModel : public Model {
 public:
  // Memory of a merge, in bytes, while the tables grow.
  static constexpr size_t kBytesPerMerge = 56;

  // `where` names the file in messages.
  // merges: two texts each.
  BpeModel(Vocab vocab, const PackedTexts& merges, BpeOptions options, std::string where);

  void tokenize(std::string_view word, std::vector<int32_t>& ids) const override;
  bool can_cut_at_metaspace() const override { return can_cut_; }
  const Vocab& vocab() const override { return vocab_; }
  std::string_view kind() const override { return options_.kind; }

 private:
  void add_merge(std::string_view left, std::string_view right, size_t rank);
  uint32_t place_of(uint64_t key) const;  // in merges_
  void find_byte_tokens();
  std::vector<Symbol> first_symbols(std::string_view word) const;
  int32_t unk_id() const;

  Vocab vocab_;
  BpeOptions options_;
  std::string where_;
  struct Entry {
    uint64_t key;  // both ids
    Merge merge;
  };
  std::vector<Entry> merges_;
  FlatIndex by_key_;
  std::array<int32_t, 256> byte_tokens_{};  // -1 where there is none
  bool can_cut_ = false;
};

}  // namespace sluice::impl::tok
