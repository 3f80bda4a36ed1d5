#include "io/tokenizer/pipeline.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "io/tokenizer/decode_stream.h"
#include "io/tokenizer/metaspace.h"
#include "io/tokenizer/plain_cuts.h"
#include "io/tokenizer/utf8.h"

namespace sluice::impl::tok {

// Ids of the words seen in one call; running text repeats most of its words.
class Pipeline::WordCache {
 public:
  void tokenize(const Model& model, std::string_view word, std::vector<int32_t>& ids) {
    if (word.size() > kMaxWordBytes) return model.tokenize(word, ids);
    if (const auto it = ranges_.find(word); it != ranges_.end()) {
      const auto first = ids_.begin() + static_cast<std::ptrdiff_t>(it->second.begin);
      ids.insert(ids.end(), first, first + static_cast<std::ptrdiff_t>(it->second.n));
      return;
    }
    const size_t n_before = ids.size();
    model.tokenize(word, ids);
    if (ranges_.size() >= kMaxWords) return;
    const size_t n = ids.size() - n_before;
    ranges_.emplace(word, Range{ids_.size(), n});
    ids_.insert(ids_.end(), ids.end() - static_cast<std::ptrdiff_t>(n), ids.end());
  }

 private:
  static constexpr size_t kMaxWordBytes = 256;
  static constexpr size_t kMaxWords = 1 << 16;
  struct Range {
    size_t begin, n;
  };
  struct StringHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  std::unordered_map<std::string, Range, StringHash, std::equal_to<>> ranges_;
  std::vector<int32_t> ids_;
};

class Pipeline::Stream : public DecodeStream {
 public:
  Stream(const Pipeline& tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special), run_(*tokenizer.parts_.decoder) {}
  std::string push(int32_t id) override {
    const auto text = tokenizer_.text_to_decode(id, skip_special_);
    return text ? run_.push(*text) : std::string();
  }
  std::string finish() override { return run_.finish(); }

 private:
  const Pipeline& tokenizer_;
  bool skip_special_;
  DecodeRun run_;
};

Pipeline::Pipeline(PipelineParts parts) : parts_(std::move(parts)) {
  SLUICE_CHECK(parts_.model && parts_.decoder);
}

std::vector<int32_t> Pipeline::encode(std::string_view text, bool add_special) const {
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = repair_utf8(text);
    text = repaired;
  }
  std::vector<int32_t> ids;
  WordCache cache;
  encode_added(text, /*at_start=*/true, cache, ids);
  return add_special ? parts_.post_processor.apply(ids) : ids;
}

std::vector<int32_t> Pipeline::encode_pieces(const PieceText& text) const {
  const PlainCuts cut = cut_plain_pieces(text, parts_.added);
  std::vector<int32_t> ids;
  WordCache cache;
  size_t begin = 0;
  const auto encode_to = [&](size_t end) {
    encode_added(std::string_view(cut.text).substr(begin, end - begin),
                 begin == 0 && !text.continues, cache, ids);
    begin = end;
  };
  for (const size_t at : cut.cuts) encode_to(at);
  encode_to(cut.text.size());
  return ids;
}

void Pipeline::encode_added(std::string_view text, bool at_start, WordCache& cache,
                            std::vector<int32_t>& ids) const {
  for (const TextPart& part : parts_.added.split_raw(text)) {
    if (part.id) {
      ids.push_back(*part.id);
      continue;
    }
    const Span span = part.span;
    encode_text(
        {std::string(text.substr(span.begin, span.end - span.begin)), at_start && span.begin == 0},
        cache, ids);
  }
}

void Pipeline::encode_text(NormalText text, WordCache& cache, std::vector<int32_t>& ids) const {
  if (parts_.normalizer) parts_.normalizer->apply(text);
  const std::vector<TextPart> parts = parts_.added.split_normalized(text.text);
  if (parts.size() == 1 && !parts.front().id) return encode_words(std::move(text), cache, ids);
  for (const TextPart& part : parts) {
    if (part.id) {
      ids.push_back(*part.id);
    } else {
      const Span span = part.span;
      encode_words(
          {text.text.substr(span.begin, span.end - span.begin), text.at_start && span.begin == 0},
          cache, ids);
    }
  }
}

void Pipeline::encode_words(NormalText text, WordCache& cache, std::vector<int32_t>& ids) const {
  std::vector<Piece> pieces;
  pieces.push_back(std::move(text));
  if (parts_.pre_tokenizer) parts_.pre_tokenizer->apply(pieces);
  const Model& model = *parts_.model;
  for (const Piece& piece : pieces) {
    if (model.can_cut_at_metaspace()) {
      for (const std::string_view word : cut_at_metaspace(piece.text)) {
        cache.tokenize(model, word, ids);
      }
    } else {
      cache.tokenize(model, piece.text, ids);
    }
  }
}

std::optional<std::string_view> Pipeline::find_text(int32_t id) const {
  const auto text = parts_.added.vocab().text_of(id);
  return text ? text : parts_.model->vocab().text_of(id);
}

std::optional<std::string_view> Pipeline::text_to_decode(int32_t id, bool skip_special) const {
  if (id < 0 || id >= vocab_size()) {
    throw Error(fmt::format("cannot decode token id {}: the vocabulary has ids 0 to {}", id,
                            vocab_size() - 1),
                "do the ids come from another tokenizer?");
  }
  const std::string* added = parts_.added.decoded_text(id);
  const auto text =
      added ? std::optional<std::string_view>(*added) : parts_.model->vocab().text_of(id);
  if (!text || (skip_special && parts_.added.is_special(*text))) return std::nullopt;
  return text;
}

std::string Pipeline::decode(std::span<const int32_t> ids, bool skip_special) const {
  Stream stream(*this, skip_special);
  std::string out;
  for (const int32_t id : ids) out += stream.push(id);
  return out + stream.finish();
}

std::unique_ptr<DecodeStream> Pipeline::open_stream(bool skip_special) const {
  return std::make_unique<Stream>(*this, skip_special);
}

int32_t Pipeline::vocab_size() const {
  return std::max(parts_.model->vocab().size(), parts_.added.vocab().size());
}

std::optional<int32_t> Pipeline::id_of(std::string_view token) const {
  const auto id = parts_.added.vocab().id_of(token);
  return id ? id : parts_.model->vocab().id_of(token);
}

std::string Pipeline::token_of(int32_t id) const {
  return std::string(find_text(id).value_or(std::string_view()));
}

bool Pipeline::is_special(int32_t id) const {
  const auto text = find_text(id);
  return text && parts_.added.is_special(*text);
}

}  // namespace sluice::impl::tok
