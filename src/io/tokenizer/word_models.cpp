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

size_t previous_boundary(std::string_view text, size_t at) {
  do {
    --at;
  } while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

}  // namespace

WordPieceModel::WordPieceModel(Vocab vocab, Options options, std::string where)
    : vocab_(std::move(vocab)), options_(std::move(options)), where_(std::move(where)) {
  for (const auto& [id, text] : vocab_.texts()) {
    longest_token_ = std::max(longest_token_, text.size());
  }
}

void WordPieceModel::tokenize(std::string_view word, std::vector<int32_t>& ids) const {
  const size_t n_before = ids.size();
  const auto give_up = [&] {
    ids.resize(n_before);
    ids.push_back(require_unk(vocab_, options_.unk_token, where_));
  };
  if (count_chars(word) > options_.max_chars) return give_up();
  std::string spelled;
  for (size_t begin = 0; begin < word.size();) {
    spelled = begin > 0 ? options_.continuing_prefix : std::string();
    const size_t n_prefix = spelled.size();
    spelled += word.substr(begin);
    size_t end = word.size();
    std::optional<int32_t> id;
    for (; end > begin; end = previous_boundary(word, end)) {
      const size_t n = n_prefix + end - begin;
      if (n > longest_token_) continue;
      id = vocab_.id_of(std::string_view(spelled).substr(0, n));
      if (id) break;
    }
    if (!id) return give_up();
    ids.push_back(*id);
    begin = end;
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
