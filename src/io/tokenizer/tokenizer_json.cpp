// Builds a tokenizer from tokenizer.json, the file of Hugging Face's `tokenizers`, or from the
// older vocab.json and merges.txt. Padding and truncation are left out: they concern batches, not
// text.

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/quote.h"
#include "io/mapped_file.h"
#include "io/tokenizer/json_values.h"
#include "io/tokenizer/loaders.h"
#include "io/tokenizer/model_lists.h"
#include "io/tokenizer/pipeline.h"
#include "io/tokenizer/special_tokens.h"
#include "io/tokenizer/utf8.h"

namespace sluice::impl::tok {

namespace {

constexpr size_t kMaxMergesBytes = size_t{64} << 20;

bool names_byte_level(const Json& json) {
  if (json.is_object()) {
    const auto type = json.find("type");
    if (type != json.end() && *type == "ByteLevel") return true;
  }
  return json.is_structured() && std::any_of(json.begin(), json.end(), names_byte_level);
}

// Each step of a sequence has a type.
size_t count_steps(const Json& json) {
  size_t n = json.is_object() && json.contains("type") ? 1 : 0;
  if (json.is_structured())
    for (const Json& inner : json) n += count_steps(inner);
  return n;
}

// The steps of a decoder call each other, so their number bounds the stack.
std::optional<JsonValue> find_steps(const JsonValue& json, std::string_view key) {
  constexpr size_t kMaxSteps = 256;
  const auto steps = json.find(key);
  if (steps && count_steps(steps->raw()) > kMaxSteps) {
    steps->refuse(fmt::format("has more than {} steps", kMaxSteps));
  }
  return steps;
}

AddedToken read_added_token(const JsonValue& json) {
  AddedToken token;
  token.content = json.at("content").string();
  token.special = json.boolean_or("special", false);
  token.single_word = json.boolean_or("single_word", false);
  token.lstrip = json.boolean_or("lstrip", false);
  token.rstrip = json.boolean_or("rstrip", false);
  token.normalized = json.boolean_or("normalized", !token.special);
  return token;
}

// A token the model knows keeps the model's id, whatever the list says (as Hugging Face does).
void read_added_tokens(const JsonValue& list, PipelineParts& parts) {
  const Vocab& vocab = parts.model->vocab();
  for (size_t i = 0; i < list.array().size(); ++i) {
    const JsonValue json = list.element(i);
    const AddedToken token = read_added_token(json);
    const int32_t stated = token_id(json.at("id"));
    if (token.content.empty()) continue;
    const int32_t id = vocab.id_of(token.content).value_or(stated);
    auto taken = parts.added.vocab().text_of(id);
    if (!taken) taken = vocab.text_of(id);
    if (taken && *taken != token.content) {
      json.refuse(fmt::format("gives id {} to {}, it belongs to {}", id, quote(token.content),
                              quote(*taken)));
    }
    const auto before = parts.added.vocab().id_of(token.content);
    if (before && *before != id) {
      json.refuse(fmt::format("gives {} a second id, {}", quote(token.content), id));
    }
    if (!parts.added.add(token, id, parts.normalizer.get())) {
      json.refuse(fmt::format("is longer than {} bytes", ByteTrie::kMaxBytes));
    }
  }
}

std::unique_ptr<Tokenizer> build(const JsonValue& json, ModelLists& lists,
                                 const SpecialTokens& special) {
  PipelineParts parts;
  const auto normalizer = find_steps(json, "normalizer");
  const auto pre_tokenizer = find_steps(json, "pre_tokenizer");
  const auto decoder = find_steps(json, "decoder");
  const bool byte_level = (pre_tokenizer && names_byte_level(pre_tokenizer->raw())) ||
                          (decoder && names_byte_level(decoder->raw()));
  if (normalizer) parts.normalizer = make_normalizer(*normalizer);
  if (pre_tokenizer) parts.pre_tokenizer = make_pre_tokenizer(*pre_tokenizer);
  parts.model = make_model(json.at("model"), lists, byte_level);
  parts.decoder = decoder ? make_decoder(*decoder) : make_space_joiner();
  if (const auto post = find_steps(json, "post_processor")) {
    parts.post_processor = PostProcessor::read(*post);
  }
  if (const auto added = json.find("added_tokens")) read_added_tokens(*added, parts);
  apply_special_tokens(special, parts);

  const std::vector<int32_t> around = parts.post_processor.apply({});
  auto tokenizer = std::make_unique<Pipeline>(std::move(parts));
  if (tokenizer->vocab_size() == 0) json.at("model").refuse("has an empty vocabulary");
  for (const int32_t id : around) {
    if (id < tokenizer->vocab_size()) continue;
    json.at("post_processor")
        .refuse(fmt::format("adds token {}, the vocabulary has {}", id, tokenizer->vocab_size()));
  }
  return tokenizer;
}

// merges.txt: two tokens a line, below a line with the version.
void read_merge_lines(const std::filesystem::path& path, ModelLists& lists) {
  const std::string text = read_text_file(path, kMaxMergesBytes);
  if (!is_valid_utf8(text)) throw Error(path_label(path) + " is not UTF-8", "is it damaged?");
  size_t n_lines = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++n_lines;
    if (!line.empty() && !lists.add_merge_line(line))
      throw Error(fmt::format("{}: line {}: expected two tokens with one space between, found {}",
                              path_label(path), n_lines, quote(line)),
                  "is it damaged?");
    begin = end + 1;
  }
  // As of vocab.json: 4 times the file, of which the lists are in use.
  lists.memory_left += 4 * text.size();
  lists.memory_left -= std::min(lists.memory_left, lists.merges.memory());
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer_json(const std::filesystem::path& folder,
                                               const SpecialTokens& special) {
  const std::filesystem::path path = folder / "tokenizer.json";
  ModelLists lists(ModelLists::File::kTokenizer, path_label(path));
  const Json root = read_tokenizer_file(path, &lists);
  const JsonSource source{root, path_label(path), kJsonHint};
  return build(JsonValue(source), lists, special);
}

std::unique_ptr<Tokenizer> load_gpt2_files(const std::filesystem::path& folder,
                                           const SpecialTokens& special) {
  const std::filesystem::path path = folder / "vocab.json";
  ModelLists lists(ModelLists::File::kVocab, path_label(path));
  const Json model = {
      {"type", "BPE"}, {"vocab", read_tokenizer_file(path, &lists)}, {"merges", Json::array()}};
  read_merge_lines(folder / "merges.txt", lists);
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", special.add_prefix_space}};
  const Json root = {{"model", model}, {"pre_tokenizer", bytes}, {"decoder", bytes}};
  const JsonSource source{root, path_label(path), kJsonHint};
  return build(JsonValue(source), lists, special);
}

}  // namespace sluice::impl::tok
