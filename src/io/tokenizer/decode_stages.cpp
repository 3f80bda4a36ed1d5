#include "io/tokenizer/decode_stages.h"

#include <algorithm>
#include <cstdint>

#include "io/tokenizer/byte_alphabet.h"
#include "io/tokenizer/growth.h"
#include "io/tokenizer/utf8.h"

namespace sluice::impl::tok {

namespace {

// The byte that <0x41> names, -1 for any other token.
int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with(">")) return -1;
  int byte = 0;
  for (const char c : token.substr(3, 2)) {
    int digit = -1;
    if (c >= '0' && c <= '9') digit = c - '0';
    if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
    if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
    if (digit < 0) return -1;
    byte = byte * 16 + digit;
  }
  return byte;
}

// Takes the part of `bytes` whose characters are complete.
std::string take_complete(std::string& bytes) {
  const size_t n = bytes.size() - incomplete_suffix(bytes);
  std::string complete = bytes.substr(0, n);
  bytes.erase(0, n);
  return complete;
}

const std::string kReplacement = to_utf8(kReplacementChar);

}  // namespace

void MapTokens::end_token() {
  const std::string text = rewrite_(token_, index_++);
  check_growth(text.size(), std::max(token_.size(), kMostDecodedBytes));
  emit(text);
  token_.clear();
}

void JoinTokens::begin() {
  if (inside_) return;
  if (any_) next_->part(between_);
  inside_ = any_ = true;
}

void JoinTokens::part(std::string_view text) {
  begin();
  next_->part(text);
}

void JoinTokens::end_token() {
  begin();
  inside_ = false;
  next_->end_token();
}

void FuseTokens::finish() {
  next_->end_token();
  next_->finish();
}

void DecodeAlphabet::end_token() {
  const std::optional<std::string> bytes = alphabet_to_bytes(token_);
  bytes_ += bytes ? *bytes : token_;
  token_.clear();
  next_->part(repair_utf8(take_complete(bytes_)));
}

void DecodeAlphabet::finish() {
  next_->part(repair_utf8(bytes_));
  bytes_.clear();
  next_->end_token();
  next_->finish();
}

void DecodeByteTokens::end_token() {
  const int byte = byte_of_token(token_);
  if (byte < 0) {
    end_run();
    emit(token_);
  } else {
    run_.push_back(static_cast<char>(byte));
    if (invalid_ == Invalid::kInvalidBytes) emit_complete();
  }
  token_.clear();
}

void DecodeByteTokens::emit_complete() {
  std::string out;
  while (!run_.empty() && incomplete_suffix(run_) != run_.size()) {
    const Utf8Char c = decode_char(run_, 0);
    const size_t n = c.valid ? c.n_bytes : 1;
    out += c.valid ? run_.substr(0, n) : kReplacement;
    run_.erase(0, n);
  }
  if (!out.empty()) emit(out);
}

void DecodeByteTokens::end_run() {
  if (run_.empty()) return;
  if (is_valid_utf8(run_)) {
    emit(run_);
  } else {
    for (size_t i = 0; i < run_.size(); ++i) emit(kReplacement);
  }
  run_.clear();
}

void DecodeByteTokens::finish() {
  end_run();
  next_->finish();
}

void StripTokens::part(std::string_view text) {
  const std::string_view content = counts_.content;
  while (at_front_ && n_stripped_ < counts_.n_start && text.starts_with(content)) {
    text.remove_prefix(content.size());
    ++n_stripped_;
  }
  if (text.empty()) return;
  at_front_ = false;
  held_ += text;
  // Only the last n_stop characters can still be taken off, and only if they are the content.
  size_t n_kept = 0;
  size_t end = held_.size();
  while (n_kept < counts_.n_stop && std::string_view(held_).substr(0, end).ends_with(content)) {
    end -= content.size();
    ++n_kept;
  }
  next_->part(std::string_view(held_).substr(0, end));
  held_.erase(0, end);
}

void StripTokens::end_token() {
  held_.clear();
  n_stripped_ = 0;
  at_front_ = true;
  next_->end_token();
}

void ReplaceText::part(std::string_view text) {
  held_ += text;
  std::string out;
  size_t begin = 0;
  for (size_t at = held_.find(text_); at != std::string::npos; at = held_.find(text_, begin)) {
    check_growth(out.size() + content_.size(), std::max(held_.size(), kMostDecodedBytes));
    out.append(held_, begin, at - begin).append(content_);
    begin = at + text_.size();
  }
  // Keep the longest end that could begin a match.
  size_t n_kept = std::min(held_.size() - begin, text_.size() - 1);
  while (n_kept > 0 && held_.compare(held_.size() - n_kept, n_kept, text_, 0, n_kept) != 0) {
    --n_kept;
  }
  out.append(held_, begin, held_.size() - n_kept - begin);
  held_.erase(0, held_.size() - n_kept);
  next_->part(out);
}

void ReplaceText::end_token() {
  next_->part(held_);
  held_.clear();
  next_->end_token();
}

void EndWords::release(std::string_view in_place_of_suffix) {
  if (!has_previous_) return;
  const auto spans = Pattern::from_text(suffix_).find_all(previous_);
  emit(replace_spans(previous_, spans, in_place_of_suffix));
}

void EndWords::end_token() {
  release(" ");
  previous_ = std::move(token_);
  token_.clear();
  has_previous_ = true;
}

void EndWords::finish() {
  release("");
  has_previous_ = false;
  next_->finish();
}

}  // namespace sluice::impl::tok
