// The long lists of a tokenizer.json, read as they come: a tree of them would take 10 times the
// file.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/json/parse.h"
#include "io/tokenizer/json_values.h"
#include "io/tokenizer/packed_texts.h"

namespace sluice::impl::tok {

class ModelLists : public JsonStream {
 public:
  enum class File : uint8_t {
    kTokenizer,  // tokenizer.json: `model.vocab` and `model.merges`
    kVocab,      // vocab.json: all of it is the vocabulary
  };
  // `label` stands for the file in errors.
  ModelLists(File file, std::string label) : file_(file), label_(std::move(label)) {}

  bool takes(std::span<const std::string_view> keys, bool is_array) override;
  void key(const std::string& name) override { key_ = name; }
  void value(Json scalar) override;
  void open(bool is_array) override;
  void close() override;
  size_t memory() const override;

  // A merge after those that are in: "a b". False where it is not two tokens.
  bool add_merge_line(std::string_view line);

  PackedTexts texts;           // of the vocabulary
  std::vector<int32_t> ids;    // of each text, where the vocabulary is an object
  std::vector<double> scores;  // the same where it is an array
  PackedTexts merges;          // two texts each

 private:
  enum class List : uint8_t { kIds, kScores, kMerges };
  [[noreturn]] void refuse(std::string_view expected, const Json& found) const;
  void add_element(const Json& element);

  File file_;
  std::string label_;
  List list_ = List::kIds;
  std::string key_;     // of the last entry
  size_t n_items_ = 0;  // elements of the list that have begun
  size_t depth_ = 0;    // of open elements
  Json element_;        // the one that is open
};

}  // namespace sluice::impl::tok
