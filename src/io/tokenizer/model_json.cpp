// Reads the "model" part of a tokenizer.json.

#include <fmt/format.h>

#include <algorithm>

#include "core/quote.h"
#include "io/tokenizer/bpe_model.h"
#include "io/tokenizer/json_values.h"
#include "io/tokenizer/model_lists.h"
#include "io/tokenizer/unigram_model.h"
#include "io/tokenizer/word_models.h"

namespace sluice::impl::tok {

namespace {

// Refuses lists of which a model would take too much: memory in bytes.
void use_memory(const JsonValue& json, ModelLists& lists, size_t memory) {
  if (memory > lists.memory_left)
    json.refuse(
        fmt::format("a tokenizer of {} tokens and {} merges takes more memory than 4 times "
                    "its file and 64 MB",
                    lists.texts.size(), lists.merges.size() / 2));
  lists.memory_left -= memory;
}

// The last first: it counts where a text is there twice.
Vocab read_vocab(const JsonValue& json, ModelLists& lists) {
  json.object();
  use_memory(json, lists, lists.texts.memory() + lists.texts.size() * Vocab::kBytesPerToken);
  Vocab vocab;
  for (size_t i = lists.texts.size(); i-- > 0;) {
    const std::string_view text = lists.texts[i];
    const int32_t id = lists.ids[i];
    if (vocab.add(text, id) || vocab.id_of(text)) continue;
    json.refuse(
        fmt::format("gives id {} to both {} and {}", id, quote(text), quote(*vocab.text_of(id))));
  }
  lists.memory_left += lists.texts.memory() +
                       vocab.n_tokens() * (Vocab::kBytesPerToken - Vocab::kBytesPerTokenAfter);
  lists.texts = {};
  return vocab;
}

const PackedTexts& read_merges(const JsonValue& json, ModelLists& lists) {
  json.array();
  use_memory(json, lists, lists.merges.size() / 2 * BpeModel::kBytesPerMerge);
  return lists.merges;
}

size_t max_nodes(const ModelLists& lists) { return lists.memory_left / ByteTrie::kBytesPerNode; }

std::unique_ptr<Model> make_bpe(const JsonValue& json, ModelLists& lists, bool byte_level) {
  BpeOptions options;
  if (const auto unk = json.find("unk_token")) options.unk_token = unk->string();
  options.continuing_prefix = json.string_or("continuing_subword_prefix", "");
  options.word_suffix = json.string_or("end_of_word_suffix", "");
  options.fuse_unk = json.boolean_or("fuse_unk", false);
  options.byte_fallback = json.boolean_or("byte_fallback", false);
  options.ignore_merges = json.boolean_or("ignore_merges", false);
  if (const auto dropout = json.find("dropout")) {
    if (dropout->number() != 0) dropout->refuse("asks for random merges: not supported");
  }
  if (byte_level) {
    options.kind = "byte-level BPE";
  } else if (options.byte_fallback) {
    options.kind = "SentencePiece BPE";
  }
  Vocab vocab = read_vocab(json.at("vocab"), lists);
  auto model = std::make_unique<BpeModel>(std::move(vocab), read_merges(json.at("merges"), lists),
                                          std::move(options), json.where());
  lists.merges = {};
  return model;
}

std::unique_ptr<Model> make_wordpiece(const JsonValue& json, ModelLists& lists) {
  WordPieceModel::Options options;
  options.unk_token = json.string_or("unk_token", options.unk_token);
  options.continuing_prefix = json.string_or("continuing_subword_prefix", "##");
  options.max_chars =
      static_cast<size_t>(json.integer_or("max_input_chars_per_word", 100, 0, 1000));
  return std::make_unique<WordPieceModel>(read_vocab(json.at("vocab"), lists), std::move(options),
                                          json.where());
}

std::unique_ptr<Model> make_word_level(const JsonValue& json, ModelLists& lists) {
  return std::make_unique<WordLevelModel>(read_vocab(json.at("vocab"), lists),
                                          json.string_or("unk_token", "<unk>"), json.where(),
                                          "WordLevel");
}

std::unique_ptr<Model> make_unigram(const JsonValue& json, ModelLists& lists) {
  const JsonValue vocab = json.at("vocab");
  vocab.array();
  use_memory(vocab, lists, lists.texts.memory() + lists.texts.size() * Vocab::kBytesPerToken);
  UnigramModel::Options options;
  options.byte_fallback = json.boolean_or("byte_fallback", false);
  if (const auto unk = json.find("unk_id")) {
    options.unk_id = token_id(*unk);
    if (static_cast<size_t>(*options.unk_id) >= lists.texts.size()) {
      unk->refuse(
          fmt::format("is {}, the vocabulary has {} tokens", *options.unk_id, lists.texts.size()));
    }
  }
  options.max_nodes = std::min(options.max_nodes, max_nodes(lists));
  auto model =
      std::make_unique<UnigramModel>(lists.texts, std::move(lists.scores), options, json.where());
  lists.texts = {};
  return model;
}

// Files from before 2021 do not name the type.
std::string guess_type(const JsonValue& json) {
  if (const auto type = json.find("type")) return type->string();
  if (json.find("merges")) return "BPE";
  if (json.at("vocab").raw().is_array()) return "Unigram";
  return json.find("max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

}  // namespace

std::unique_ptr<Model> make_model(const JsonValue& json, ModelLists& lists, bool byte_level) {
  const std::string type = guess_type(json);
  if (type == "BPE") return make_bpe(json, lists, byte_level);
  if (type == "WordPiece") return make_wordpiece(json, lists);
  if (type == "WordLevel") return make_word_level(json, lists);
  if (type == "Unigram") return make_unigram(json, lists);
  refuse_type(json, type);
}

}  // namespace sluice::impl::tok
