#include "io/tokenizer/score_bpe_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/quote.h"
#include "io/tokenizer/metaspace.h"
#include "io/tokenizer/utf8.h"

namespace sluice::impl::tok {

ScoreBpeModel::ScoreBpeModel(const std::vector<ScoredToken>& tokens, std::string where)
    : where_(std::move(where)) {
  can_cut_ = true;
  byte_tokens_.fill(-1);
  scores_.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const ScoredToken& token = tokens[i];
    const auto id = static_cast<int32_t>(i);
    scores_.push_back(token.score);
    if (!vocab_.add(token.text, id)) vocab_.add_unreachable(token.text, id);
    if (token.type == TokenType::kUnknown && unk_id_ < 0) unk_id_ = id;
    const bool is_piece = token.type == TokenType::kNormal || token.type == TokenType::kUnused ||
                          token.type == TokenType::kUserDefined;
    if (!is_piece || token.text.empty()) continue;
    const bool user_defined = token.type == TokenType::kUserDefined;
    pieces_.add(token.text, id);  // the first of its text counts
    longest_piece_ = std::max(longest_piece_, token.text.size());
    if (user_defined && !user_defined_.add(token.text, id)) {
      throw Error(fmt::format("{}: user-defined token {} is longer than {} bytes", where_, id,
                              ByteTrie::kMaxBytes),
                  "is the file damaged?");
    }
    can_cut_ = can_cut_ && !has_inner_metaspace(token.text);
  }
  for (size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
    byte_tokens_[byte] = vocab_.id_of(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
}

std::vector<Symbol> ScoreBpeModel::first_symbols(std::string_view word) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (size_t at = 0; at < word.size();) {
    Symbol symbol;
    symbol.begin = static_cast<uint32_t>(at);
    const size_t n_user_defined = user_defined_.longest_at(word, at).n_bytes;
    symbol.frozen = n_user_defined > 0;
    const size_t n = symbol.frozen ? n_user_defined : decode_char(word, at).n_bytes;
    symbol.n_bytes = static_cast<uint32_t>(n);
    symbols.push_back(symbol);
    at += n;
  }
  return symbols;
}

void ScoreBpeModel::append_unknown(std::string_view text, std::vector<int32_t>& ids,
                                   bool& after_unknown) const {
  const auto has_token = [&](char byte) { return byte_tokens_[static_cast<uint8_t>(byte)] >= 0; };
  if (std::all_of(text.begin(), text.end(), has_token)) {
    for (const char byte : text) ids.push_back(byte_tokens_[static_cast<uint8_t>(byte)]);
    after_unknown = false;
    return;
  }
  if (unk_id_ < 0) {
    throw Error(fmt::format("{}: no token for {}, no byte tokens and no unknown token", where_,
                            quote(text)),
                "the vocabulary does not cover this text");
  }
  if (!after_unknown) ids.push_back(unk_id_);
  after_unknown = true;
}

void ScoreBpeModel::tokenize(std::string_view word, std::vector<int32_t>& ids) const {
  std::vector<Symbol> symbols = first_symbols(word);
  const auto find_merge = [&](const Symbol& left, const Symbol& right) -> std::optional<Merge> {
    const size_t n = size_t{left.n_bytes} + right.n_bytes;
    if (n > longest_piece_) return std::nullopt;
    const auto id = pieces_.id_of(word.substr(left.begin, n));
    if (!id) return std::nullopt;
    return Merge{-scores_[static_cast<size_t>(*id)], *id};
  };
  merge_symbols(symbols, find_merge);
  bool after_unknown = false;
  for (const Symbol& symbol : symbols) {
    if (symbol.n_bytes == 0) continue;
    const std::string_view text = word.substr(symbol.begin, symbol.n_bytes);
    const auto id = pieces_.id_of(text);
    if (!id) {
      append_unknown(text, ids, after_unknown);
    } else {
      ids.push_back(*id);
      after_unknown = false;
    }
  }
}

}  // namespace sluice::impl::tok
