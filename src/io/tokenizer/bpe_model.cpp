#include "io/tokenizer/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/quote.h"
#include "io/tokenizer/metaspace.h"
#include "io/tokenizer/utf8.h"

namespace sluice::impl::tok {

namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

}  // namespace

BpeModel::BpeModel(Vocab vocab, const PackedTexts& merges, BpeOptions options, std::string where)
    : vocab_(std::move(vocab)), options_(std::move(options)), where_(std::move(where)) {
  can_cut_ = !options_.ignore_merges && options_.continuing_prefix.empty() &&
             options_.word_suffix.empty() && vocab_.id_of(kMetaspace).has_value();
  merges_.reserve(merges.size() / 2);
  for (size_t rank = 0; rank < merges.size() / 2; ++rank) {
    add_merge(merges[2 * rank], merges[2 * rank + 1], rank);
  }
  find_byte_tokens();
}

uint32_t BpeModel::place_of(uint64_t key) const {
  return by_key_.find(key, [&](uint32_t at) { return merges_[at].key == key; });
}

void BpeModel::add_merge(std::string_view left, std::string_view right, size_t rank) {
  const auto known = [&](std::string_view token) {
    const auto id = vocab_.id_of(token);
    if (!id) {
      throw Error(fmt::format("{}: merge {} names {}, which is not in the vocabulary", where_, rank,
                              quote(token)),
                  "are vocabulary and merges from one tokenizer?");
    }
    return *id;
  };
  const int32_t left_id = known(left);
  const int32_t right_id = known(right);
  if (right.size() < options_.continuing_prefix.size()) {
    throw Error(fmt::format("{}: merge {} joins {}, which is shorter than the prefix", where_, rank,
                            quote(right)),
                "are vocabulary and merges from one tokenizer?");
  }
  std::string joined(left);
  joined += right.substr(options_.continuing_prefix.size());
  const Merge merge = {static_cast<double>(rank), known(joined)};
  // Of a pair that is there twice the last counts.
  const uint32_t before = place_of(pair_key(left_id, right_id));
  if (before != FlatIndex::kNone) {
    merges_[before].merge = merge;
  } else {
    merges_.push_back({pair_key(left_id, right_id), merge});
    by_key_.add(static_cast<uint32_t>(merges_.size() - 1),
                [this](uint32_t at) { return merges_[at].key; });
  }
  can_cut_ = can_cut_ && !has_inner_metaspace(joined);
}

void BpeModel::find_byte_tokens() {
  for (size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
    byte_tokens_[byte] = vocab_.id_of(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
}

int32_t BpeModel::unk_id() const {
  const auto id = vocab_.id_of(*options_.unk_token);
  if (!id) {
    throw Error(fmt::format("{}: unk_token {} is needed for this text but is not in the vocabulary",
                            where_, quote(*options_.unk_token)),
                "the vocabulary does not cover this text");
  }
  return *id;
}

// One symbol per character. A pending unknown waits for the next known character, so that its
// neighbours can join it; bytes of the fallback do not release it (as Hugging Face does).
std::vector<Symbol> BpeModel::first_symbols(std::string_view word) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  std::optional<Symbol> unknown;
  const auto release = [&] {
    if (unknown) symbols.push_back(*unknown);
    unknown.reset();
  };
  std::string spelled;
  for (size_t at = 0; at < word.size();) {
    const size_t n_bytes = decode_char(word, at).n_bytes;
    const bool last = at + n_bytes == word.size();
    spelled.assign(at > 0 ? options_.continuing_prefix : std::string());
    spelled += word.substr(at, n_bytes);
    if (last) spelled += options_.word_suffix;
    Symbol symbol;
    symbol.begin = static_cast<uint32_t>(at);
    symbol.n_bytes = static_cast<uint32_t>(n_bytes);
    at += n_bytes;
    if (const auto id = vocab_.id_of(spelled)) {
      release();
      symbol.id = *id;
      symbols.push_back(symbol);
      continue;
    }
    const auto has_token = [&](char byte) { return byte_tokens_[static_cast<uint8_t>(byte)] >= 0; };
    if (options_.byte_fallback && std::all_of(spelled.begin(), spelled.end(), has_token)) {
      symbol.n_bytes = 1;
      for (const char byte : spelled) {
        symbol.id = byte_tokens_[static_cast<uint8_t>(byte)];
        symbols.push_back(symbol);
      }
      continue;
    }
    if (!options_.unk_token) continue;
    if (unknown && options_.fuse_unk) {
      unknown->n_bytes += symbol.n_bytes;
      continue;
    }
    release();
    symbol.id = unk_id();
    unknown = symbol;
  }
  release();
  return symbols;
}

void BpeModel::tokenize(std::string_view word, std::vector<int32_t>& ids) const {
  if (options_.ignore_merges) {
    if (const auto id = vocab_.id_of(word)) {
      ids.push_back(*id);
      return;
    }
  }
  std::vector<Symbol> symbols = first_symbols(word);
  merge_symbols(symbols, [this](const Symbol& left, const Symbol& right) -> std::optional<Merge> {
    const uint32_t place = place_of(pair_key(left.id, right.id));
    if (place == FlatIndex::kNone) return std::nullopt;
    return merges_[place].merge;
  });
  for (const Symbol& symbol : symbols) {
    if (symbol.n_bytes > 0) ids.push_back(symbol.id);
  }
}

}  // namespace sluice::impl::tok
