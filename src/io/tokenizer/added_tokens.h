// Tokens that are cut out of the text before anything else sees it: special tokens, and words
// added to a vocabulary after training.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "io/tokenizer/byte_trie.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/regex.h"
#include "io/tokenizer/vocab.h"

namespace sluice::impl::tok {

struct AddedToken {
  std::string content;
  bool special = false;
  bool single_word = false;  // not inside a word
  bool lstrip = false;       // takes the whitespace before it along
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for after normalization, in its normalized form
};

struct TextPart {
  Span span;
  std::optional<int32_t> id;  // an added token; otherwise text
};

class AddedTokens {
 public:
  // `normalizer` may be null. A token of this id that is there already is replaced. False, and
  // nothing added, when the token is longer than ByteTrie::kMaxBytes.
  bool add(const AddedToken& token, int32_t id, const Normalizer* normalizer);

  const Vocab& vocab() const { return vocab_; }
  bool contains(std::string_view content) const { return vocab_.id_of(content).has_value(); }
  bool is_special(std::string_view content) const;
  // The spelling that decoding shows: the normalized one where it is looked for. Null when the id
  // is not that of an added token.
  const std::string* decoded_text(int32_t id) const;

  // Parts that cover the text, from left to right.
  std::vector<TextPart> split_raw(std::string_view text) const { return split(text, raw_); }
  std::vector<TextPart> split_normalized(std::string_view text) const {
    return split(text, normalized_);
  }

  // Calls visit(n_bytes) for every special token that begins at text[at], as it is written or as
  // the normalizer would have it.
  template <typename Visit>
  void visit_special_at(std::string_view text, size_t at, const Visit& visit) const {
    for (const ByteTrie* trie : {&raw_, &normalized_})
      trie->visit_at(text, at, [&](size_t n_bytes, int32_t id) {
        if (tokens_.at(id).special) visit(n_bytes);
      });
  }

 private:
  std::vector<TextPart> split(std::string_view text, const ByteTrie& trie) const;

  Vocab vocab_;
  std::unordered_map<int32_t, AddedToken> tokens_;
  std::unordered_map<int32_t, std::string> decoded_;
  std::unordered_set<std::string> special_;
  ByteTrie raw_, normalized_;
};

}  // namespace sluice::impl::tok
