// The tokenizer of ESM-2: every line of vocab.txt is a token and is found wherever it stands;
// what lies between is split at whitespace and unknown. <cls> goes before, <eos> after.

#include <fmt/format.h>

#include "core/error.h"
#include "core/quote.h"
#include "io/mapped_file.h"
#include "io/tokenizer/char_class.h"
#include "io/tokenizer/loaders.h"
#include "io/tokenizer/pipeline.h"
#include "io/tokenizer/special_tokens.h"
#include "io/tokenizer/utf8.h"
#include "io/tokenizer/word_models.h"

namespace sluice::impl::tok {

namespace {

constexpr size_t kMaxVocabBytes = 1 << 20;

std::string_view trim(std::string_view line) {
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (!line.empty() && is_space(line.front())) line.remove_prefix(1);
  while (!line.empty() && is_space(line.back())) line.remove_suffix(1);
  return line;
}

std::vector<std::string> read_lines(const std::filesystem::path& path) {
  const std::string text = read_text_file(path, kMaxVocabBytes);
  if (!is_valid_utf8(text))
    throw Error(path_label(path) + " is not UTF-8 text", "is the file damaged?");
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.emplace_back(trim(std::string_view(text).substr(begin, end - begin)));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

std::unique_ptr<Tokenizer> load_esm_vocab(const std::filesystem::path& folder,
                                          const SpecialTokens& special) {
  const std::filesystem::path path = folder / "vocab.txt";
  const std::vector<std::string> lines = read_lines(path);
  if (lines.empty()) throw Error(path_label(path) + " is empty", "is the file damaged?");
  Vocab vocab;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!vocab.add(lines[i], static_cast<int32_t>(i))) {
      throw Error(
          fmt::format("{}: line {} repeats the token {}", path_label(path), i + 1, quote(lines[i])),
          "is the file damaged?");
    }
  }
  const auto require = [&](const std::string& token) {
    const auto id = vocab.id_of(token);
    if (!id)
      throw Error(fmt::format("{} has no token {}", path_label(path), quote(token)),
                  "is this the vocab.txt of an ESM model?");
    return *id;
  };
  const std::string unk = special.unk.value_or("<unk>");
  const int32_t cls = require(special.cls.value_or("<cls>"));
  const int32_t eos = require(special.eos.value_or("<eos>"));
  require(unk);

  PipelineParts parts;
  parts.model = std::make_unique<WordLevelModel>(std::move(vocab), unk, path_label(path), "ESM");
  parts.pre_tokenizer = make_python_whitespace_split();
  parts.decoder = make_space_joiner();
  parts.post_processor = PostProcessor({cls}, {eos});
  SpecialTokens named = special;
  named.all.insert(named.all.end(), {unk, "<cls>", "<eos>", "<pad>", "<mask>"});
  named.add_bos = named.add_eos = false;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    if (!parts.added.add({.content = lines[i]}, static_cast<int32_t>(i), nullptr)) {
      throw Error(fmt::format("{}: line {} is longer than {} bytes", path_label(path), i + 1,
                              ByteTrie::kMaxBytes),
                  "is the file damaged?");
    }
  }
  apply_special_tokens(named, parts);
  parts.eos = eos;
  return std::make_unique<Pipeline>(std::move(parts));
}

}  // namespace sluice::impl::tok
