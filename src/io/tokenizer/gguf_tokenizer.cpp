// Builds a tokenizer from the metadata of a GGUF file.

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/quote.h"
#include "io/gguf.h"
#include "io/tokenizer/bpe_model.h"
#include "io/tokenizer/gguf_pre.h"
#include "io/tokenizer/json_values.h"
#include "io/tokenizer/pipeline.h"
#include "io/tokenizer/score_bpe_model.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokenizer/utf8.h"

namespace sluice::impl {

namespace {

using namespace tok;

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::string_view kScores = "tokenizer.ggml.scores";
constexpr std::string_view kTypes = "tokenizer.ggml.token_type";
constexpr std::string_view kMerges = "tokenizer.ggml.merges";

std::string place(const GgufFile& file, std::string_view key) {
  return fmt::format("{}: {}", path_label(file.path), key);
}

void check_length(const GgufFile& file, std::string_view key, size_t n, size_t n_tokens) {
  if (n != n_tokens) {
    throw Error(fmt::format("{} has {} entries for {} tokens", place(file, key), n, n_tokens),
                "was the file converted completely?");
  }
}

std::vector<ScoredToken> read_tokens(const GgufFile& file) {
  const std::vector<std::string>* texts = file.find_strings(kTokens);
  if (!texts || texts->empty())
    throw Error(place(file, kTokens) + " is missing or empty",
                "was the file converted completely?");
  // Both lists of texts of ScoreBpeModel; a byte-level model has one of them, and merges.
  const size_t n_bytes =
      std::accumulate(texts->begin(), texts->end(), size_t{0},
                      [](size_t sum, const std::string& text) { return sum + text.size(); });
  const std::vector<std::string>* merges = file.find_strings(kMerges);
  const size_t memory = 2 * n_bytes +
                        texts->size() * (sizeof(ScoredToken) + 2 * Vocab::kBytesPerToken) +
                        (merges ? merges->size() : 0) * BpeModel::kBytesPerMerge;
  if (memory > file.memory_left)
    throw Error(fmt::format("{}: a tokenizer of {} tokens takes more memory than 4 times its file "
                            "and 64 MB",
                            place(file, kTokens), texts->size()),
                "is this a language model's checkpoint?");
  std::vector<ScoredToken> tokens(texts->size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!is_valid_utf8((*texts)[i])) {
      throw Error(fmt::format("{}[{}] is not UTF-8", place(file, kTokens), i),
                  "was the file converted completely?");
    }
    tokens[i].text = (*texts)[i];
  }
  if (const std::vector<double>* scores = file.find_floats(kScores)) {
    check_length(file, kScores, scores->size(), tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i].score = (*scores)[i];
      if (std::isnan(tokens[i].score))
        throw Error(fmt::format("{}[{}] is not a number", place(file, kScores), i),
                    "was the file converted completely?");
    }
  }
  if (const std::vector<int64_t>* types = file.find_ints(kTypes)) {
    check_length(file, kTypes, types->size(), tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int64_t type = (*types)[i];
      if (type < 1 || type > 6) {
        throw Error(fmt::format("{}[{}] is {}, not 1 to 6", place(file, kTypes), i, type),
                    "was the file converted completely?");
      }
      tokens[i].type = static_cast<TokenType>(type);
    }
  }
  return tokens;
}

std::optional<int32_t> read_id(const GgufFile& file, std::string_view key, size_t n_tokens) {
  const std::optional<int64_t> id = file.find_int(key);
  if (!id) return std::nullopt;
  if (*id < 0 || static_cast<uint64_t>(*id) >= n_tokens) {
    throw Error(fmt::format("{} is {}, there are {} tokens", place(file, key), *id, n_tokens),
                "was the file converted completely?");
  }
  return static_cast<int32_t>(*id);
}

void add_special_ids(const GgufFile& file, size_t n_tokens, bool add_bos_by_default,
                     PipelineParts& parts) {
  parts.bos = read_id(file, "tokenizer.ggml.bos_token_id", n_tokens);
  parts.eos = read_id(file, "tokenizer.ggml.eos_token_id", n_tokens);
  const bool add_bos = file.find_bool("tokenizer.ggml.add_bos_token").value_or(add_bos_by_default);
  const bool add_eos = file.find_bool("tokenizer.ggml.add_eos_token").value_or(false);
  if (add_bos && parts.bos) parts.post_processor.put_first(*parts.bos);
  if (add_eos && parts.eos) parts.post_processor.put_last(*parts.eos);
}

// Control tokens of Phi-3's SentencePiece vocabulary take the whitespace after them along, but for
// these. Its tokenizer.json says so of each; no key of the file does.
bool strips_right(const GgufFile& file, const ScoredToken& token) {
  const auto is = [&](std::string_view key, const char* value) {
    const GgufValue* found = file.find(key);
    return found != nullptr && *found == GgufValue(std::string(value));
  };
  return token.type == TokenType::kControl && token.text != "<s>" &&
         token.text != "<|endoftext|>" && is("general.architecture", "phi3") &&
         is("tokenizer.ggml.model", "llama");
}

// Control tokens are recognised in text and are special. User-defined ones are cut out too where
// the model does not look for them itself.
void add_tokens(const GgufFile& file, const std::vector<ScoredToken>& tokens, bool user_defined,
                PipelineParts& parts) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const TokenType type = tokens[i].type;
    const bool control = type == TokenType::kControl || type == TokenType::kUnknown;
    if (tokens[i].text.empty() || !(control || (user_defined && type == TokenType::kUserDefined))) {
      continue;
    }
    if (parts.added.contains(tokens[i].text)) continue;
    const bool rstrip = strips_right(file, tokens[i]);
    if (!parts.added.add(
            {.content = std::string(tokens[i].text), .special = control, .rstrip = rstrip},
            static_cast<int32_t>(i), nullptr)) {
      throw Error(fmt::format("{}[{}] is longer than {} bytes", place(file, kTokens), i,
                              ByteTrie::kMaxBytes),
                  "is the file damaged?");
    }
  }
}

// Two texts each.
PackedTexts read_merges(const GgufFile& file) {
  const std::vector<std::string>* lines = file.find_strings(kMerges);
  if (!lines)
    throw Error(place(file, kMerges) + " is missing", "was the file converted completely?");
  PackedTexts merges;
  for (const std::string_view line : *lines) {
    const size_t space = line.find(' ', 1);
    if (space == line.npos) {
      throw Error(fmt::format("{}[{}] is not two tokens with one space between",
                              place(file, kMerges), merges.size() / 2),
                  "was the file converted completely?");
    }
    merges.add(line.substr(0, space));
    merges.add(line.substr(space + 1));
  }
  return merges;
}

std::unique_ptr<PreTokenizer> make_pre(const GgufPre& pre, const std::string& where) {
  Json steps = Json::array();
  for (const std::string_view regex : pre.regexes) {
    steps.push_back({{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}});
  }
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  const Json json = {{"type", "Sequence"}, {"pretokenizers", steps}};
  const JsonSource source{json, where, kJsonHint};
  return make_pre_tokenizer(JsonValue(source));
}

std::unique_ptr<Tokenizer> load_byte_level(const GgufFile& file) {
  constexpr std::string_view kPre = "tokenizer.ggml.pre";
  const std::string name = file.find(kPre) ? file.require_string(kPre) : "default";
  const std::optional<GgufPre> pre = find_gguf_pre(name);
  if (!pre) {
    throw Error(
        fmt::format("{} is {}: this pre-tokenizer is not known", place(file, kPre), quote(name)),
        "use the model's tokenizer.json instead");
  }
  const std::vector<ScoredToken> tokens = read_tokens(file);
  Vocab vocab;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (!vocab.add(tokens[i].text, id)) vocab.add_unreachable(tokens[i].text, id);
  }
  PipelineParts parts;
  if (pre->nfc) {
    const Json nfc = {{"type", "NFC"}};
    const JsonSource source{nfc, place(file, kPre), kJsonHint};
    parts.normalizer = make_normalizer(JsonValue(source));
  }
  parts.pre_tokenizer = make_pre(*pre, place(file, kPre));
  BpeOptions options;
  options.ignore_merges = pre->ignore_merges;
  options.kind = "byte-level BPE";
  parts.model = std::make_unique<BpeModel>(std::move(vocab), read_merges(file), options,
                                           place(file, kMerges));
  parts.decoder = make_byte_level_decoder();
  add_tokens(file, tokens, /*user_defined=*/true, parts);
  add_special_ids(file, tokens.size(), pre->add_bos, parts);
  return std::make_unique<Pipeline>(std::move(parts));
}

std::unique_ptr<Tokenizer> load_sentencepiece(const GgufFile& file) {
  if (!file.find_floats(kScores))
    throw Error(place(file, kScores) + " is missing", "was the file converted completely?");
  const std::vector<ScoredToken> tokens = read_tokens(file);
  const bool prefix = file.find_bool("tokenizer.ggml.add_space_prefix").value_or(true);
  Json steps = Json::array();
  if (prefix) steps.push_back({{"type", "Prepend"}, {"prepend", "▁"}});
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}});
  const Json normalizer = {{"type", "Sequence"}, {"normalizers", steps}};
  const JsonSource source{normalizer, place(file, kTokens), kJsonHint};
  PipelineParts parts;
  parts.normalizer = make_normalizer(JsonValue(source));
  parts.model = std::make_unique<ScoreBpeModel>(tokens, place(file, kTokens));
  parts.decoder = make_sentencepiece_decoder(prefix);
  add_tokens(file, tokens, /*user_defined=*/false, parts);
  add_special_ids(file, tokens.size(), /*add_bos_by_default=*/true, parts);
  return std::make_unique<Pipeline>(std::move(parts));
}

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const GgufFile& file) {
  constexpr std::string_view kModel = "tokenizer.ggml.model";
  const std::string& model = file.require_string(kModel);
  if (model == "gpt2") return load_byte_level(file);
  if (model == "llama") return load_sentencepiece(file);
  throw Error(fmt::format("{} is {}: not supported", place(file, kModel), quote(model)),
              "gpt2 and llama are");
}

}  // namespace sluice::impl
