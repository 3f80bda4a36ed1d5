#include "io/tokenizer/word_models.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/quote.h"

namespace sluice::impl::tok {

namespace {

int32_t require_unk(const Vocab& vocab, const std::string& token, const std::string& where) {
  const auto id = vocab.id_of(token);
  if (!id) {
    throw Error(fmt::format("{}: unk_token {} is needed for this text but is not in the vocabulary",
                            where, quote(token)),
                "the vocabulary does not cover this text");
  }
  return *id;
}

size_t count_chars(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

WordPieceModel::WordPieceModel(Vocab vocab, Options options, std::string where)
    : vocab_(std::move(vocab)), options_(std::move(options)), where_(std::move(where)) {
  for (size_t i = 0; i < vocab_.n_tokens(); ++i)
    if (vocab_.text_at(i).size() > kMaxBytes)
      throw Error(
          fmt::format("{}: token {} is longer than {} bytes", where_, vocab_.id_at(i), kMaxBytes),
          "is the file damaged?");
}

void WordPieceModel::tokenize(std::string_view word, std::vector<int32_t>& ids) const {
  const size_t n_before = ids.size();
  const auto give_up = [&] {
    ids.resize(n_before);
    ids.push_back(require_unk(vocab_, options_.unk_token, where_));
  };
  if (count_chars(word) > options_.max_chars) return give_up();
  for (size_t begin = 0; begin < word.size();) {
    const Vocab::Longest match =
        vocab_.longest(begin > 0 ? options_.continuing_prefix : "", word.substr(begin));
    if (match.n_bytes == 0) return give_up();
    ids.push_back(match.id);
    begin += match.n_bytes;
  }
}

WordLevelModel::WordLevelModel(Vocab vocab, std::string unk_token, std::string where,
                               std::string_view kind)
    : vocab_(std::move(vocab)),
      unk_token_(std::move(unk_token)),
      where_(std::move(where)),
      kind_(kind) {}

void WordLevelModel::tokenize(std::string_view word, std::vector<int32_t>& ids) const {
  const auto id = vocab_.id_of(word);
  ids.push_back(id ? *id : require_unk(vocab_, unk_token_, where_));
}

}  // namespace sluice::impl::tok
