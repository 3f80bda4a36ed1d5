#include "io/tokenizer/unigram_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/quote.h"
#include "io/tokenizer/utf8.h"

namespace sluice::impl::tok {

namespace {

constexpr double kUnknownPenalty = 10.0;  // below the worst token, as in SentencePiece

}  // namespace

UnigramModel::UnigramModel(const PackedTexts& tokens, std::vector<double> scores, Options options,
                           std::string where)
    : scores_(std::move(scores)),
      options_(options),
      where_(std::move(where)),
      trie_(options.max_nodes) {
  double lowest = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string_view text = tokens[i];
    lowest = std::min(lowest, scores_[i]);
    if (!text.empty() && !trie_.add(text, id)) {
      throw Error(fmt::format("{}: token {} is longer than {} bytes, or the vocabulary than {}",
                              where_, id, ByteTrie::kMaxBytes, trie_.max_nodes()),
                  "is the file damaged?");
    }
    if (!vocab_.add(text, id)) {
      throw Error(fmt::format("{}: token {} appears twice", where_, quote(text)),
                  "is the file damaged?");
    }
  }
  unk_score_ = lowest - kUnknownPenalty;
  for (size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
    byte_tokens_[byte] = vocab_.id_of(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
}

std::vector<UnigramModel::Cut> UnigramModel::best_cuts(std::string_view word) const {
  std::vector<Cut> cuts(word.size() + 1);
  const auto offer = [&cuts](size_t begin, size_t end, double score, int32_t id) {
    Cut& cut = cuts[end];
    const double total = cuts[begin].score + score;
    if (cut.id < 0 || total > cut.score) cut = {total, begin, id};
  };
  for (size_t begin = 0; begin < word.size();) {
    const size_t n_char = decode_char(word, begin).n_bytes;
    bool has_single = false;
    trie_.visit_at(word, begin, [&](size_t n_bytes, int32_t id) {
      offer(begin, begin + n_bytes, scores_[static_cast<size_t>(id)], id);
      has_single = has_single || n_bytes == n_char;
    });
    if (!has_single) {
      if (!options_.unk_id) {
        throw Error(fmt::format("{}: unk_id is needed for this text but is not given", where_),
                    "the vocabulary does not cover this text");
      }
      offer(begin, begin + n_char, unk_score_, *options_.unk_id);
    }
    begin += n_char;
  }
  return cuts;
}

void UnigramModel::tokenize(std::string_view word, std::vector<int32_t>& ids) const {
  const std::vector<Cut> cuts = best_cuts(word);
  std::vector<std::string_view> parts;  // last first; neighbouring unknowns as one
  bool after_unknown = false;
  for (size_t end = word.size(); end > 0;) {
    const Cut& cut = cuts[end];
    const bool unknown = options_.unk_id && cut.id == *options_.unk_id;
    const std::string_view part = word.substr(cut.begin, end - cut.begin);
    if (unknown && after_unknown) {
      parts.back() = word.substr(cut.begin, part.size() + parts.back().size());
    } else {
      parts.push_back(part);
    }
    after_unknown = unknown;
    end = cut.begin;
  }
  for (auto it = parts.rbegin(); it != parts.rend(); ++it) append(*it, ids);
}

void UnigramModel::append(std::string_view text, std::vector<int32_t>& ids) const {
  if (const auto id = vocab_.id_of(text)) {
    ids.push_back(*id);
    return;
  }
  const auto has_token = [&](char byte) { return byte_tokens_[static_cast<uint8_t>(byte)] >= 0; };
  if (options_.byte_fallback && std::all_of(text.begin(), text.end(), has_token)) {
    for (const char byte : text) ids.push_back(byte_tokens_[static_cast<uint8_t>(byte)]);
    return;
  }
  ids.push_back(*options_.unk_id);
}

}  // namespace sluice::impl::tok
