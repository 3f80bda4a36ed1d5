// Reads the "model" part of a tokenizer.json.

#include <fmt/format.h>

#include <algorithm>

#include "core/quote.h"
#include "io/tokenizer/bpe_model.h"
#include "io/tokenizer/json_values.h"
#include "io/tokenizer/unigram_model.h"
#include "io/tokenizer/word_models.h"

namespace sluice::impl::tok {

namespace {

Vocab read_vocab(const JsonValue& json) {
  Vocab vocab;
  for (const auto& [text, id_json] : json.object()) {
    const int32_t id = token_id(JsonValue(id_json, json.source()));
    if (!vocab.add(text, id)) {
      json.refuse(
          fmt::format("gives id {} to both {} and {}", id, quote(*vocab.text_of(id)), quote(text)));
    }
  }
  return vocab;
}

// "a b", or ["a", "b"].
std::vector<std::pair<std::string, std::string>> read_merges(const JsonValue& json) {
  std::vector<std::pair<std::string, std::string>> merges;
  const Json::array_t& items = json.array();
  merges.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const Json& item = items[i];
    if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
      merges.emplace_back(item[0].get<std::string>(), item[1].get<std::string>());
      continue;
    }
    if (!item.is_string()) json.element(i).expected("a pair of tokens");
    const auto& line = item.get_ref<const std::string&>();
    if (line.starts_with("#version")) continue;
    const size_t space = line.find(' ');
    if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
      json.element(i).expected("two tokens with one space between");
    }
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return merges;
}

std::unique_ptr<Model> make_bpe(const JsonValue& json, bool byte_level) {
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
  return std::make_unique<BpeModel>(read_vocab(json.at("vocab")), read_merges(json.at("merges")),
                                    std::move(options), json.where());
}

std::unique_ptr<Model> make_wordpiece(const JsonValue& json) {
  WordPieceModel::Options options;
  options.unk_token = json.string_or("unk_token", options.unk_token);
  options.continuing_prefix = json.string_or("continuing_subword_prefix", "##");
  options.max_chars =
      static_cast<size_t>(json.integer_or("max_input_chars_per_word", 100, 0, 1000));
  return std::make_unique<WordPieceModel>(read_vocab(json.at("vocab")), std::move(options),
                                          json.where());
}

std::unique_ptr<Model> make_word_level(const JsonValue& json) {
  return std::make_unique<WordLevelModel>(read_vocab(json.at("vocab")),
                                          json.string_or("unk_token", "<unk>"), json.where(),
                                          "WordLevel");
}

std::unique_ptr<Model> make_unigram(const JsonValue& json) {
  const JsonValue vocab = json.at("vocab");
  std::vector<std::pair<std::string, double>> tokens;
  for (size_t i = 0; i < vocab.array().size(); ++i) {
    const Json& item = vocab.array()[i];
    if (!item.is_array() || item.size() != 2 || !item[0].is_string() || !item[1].is_number()) {
      vocab.element(i).expected("a token with its score");
    }
    tokens.emplace_back(item[0].get<std::string>(), item[1].get<double>());
  }
  UnigramModel::Options options;
  options.byte_fallback = json.boolean_or("byte_fallback", false);
  if (const auto unk = json.find("unk_id")) {
    options.unk_id = token_id(*unk);
    if (static_cast<size_t>(*options.unk_id) >= tokens.size()) {
      unk->refuse(
          fmt::format("is {}, the vocabulary has {} tokens", *options.unk_id, tokens.size()));
    }
  }
  return std::make_unique<UnigramModel>(std::move(tokens), options, json.where());
}

// Files from before 2021 do not name the type.
std::string guess_type(const JsonValue& json) {
  if (const auto type = json.find("type")) return type->string();
  if (json.find("merges")) return "BPE";
  if (json.at("vocab").raw().is_array()) return "Unigram";
  return json.find("max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

}  // namespace

std::unique_ptr<Model> make_model(const JsonValue& json, bool byte_level) {
  const std::string type = guess_type(json);
  if (type == "BPE") return make_bpe(json, byte_level);
  if (type == "WordPiece") return make_wordpiece(json);
  if (type == "WordLevel") return make_word_level(json);
  if (type == "Unigram") return make_unigram(json);
  refuse_type(json, type);
}

}  // namespace sluice::impl::tok
