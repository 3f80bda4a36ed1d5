#include "eval/text/text_stream.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <system_error>

#include "core/error.h"
#include "io/mapped_file.h"

namespace sluice::impl {
namespace {

void trim_newlines(std::string& text, bool front, bool back) {
  const auto is_newline = [](char c) { return c == '\n' || c == '\r'; };
  if (back)
    while (!text.empty() && is_newline(text.back())) text.pop_back();
  if (front)
    text.erase(0, static_cast<size_t>(std::find_if_not(text.begin(), text.end(), is_newline) -
                                      text.begin()));
}

// After the last line end that a letter or digit follows: pre-tokenizers never join across it.
// Failing that, at the last place that does not split a character.
size_t cut_point(const std::string& text, size_t limit) {
  for (size_t i = limit; i > limit / 2; --i)
    if (text[i - 1] == '\n' && std::isalnum(static_cast<unsigned char>(text[i]))) return i;
  size_t i = limit;
  while (i > limit - 4 && (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80) --i;
  return i;
}

}  // namespace

TextStream::TextStream(const std::filesystem::path& path, const Tokenizer& tokenizer,
                       std::string separator)
    : tokenizer_(tokenizer),
      path_(path),
      separator_(std::move(separator)),
      file_(path, std::ios::binary) {
  const int reason = errno;  // of opening it
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    throw Error(path.string() + ": is a folder", "-f takes a text file");
  if (!file_)
    throw Error(path.string() + ": cannot be read: " + std::generic_category().message(reason),
                "-f takes a text file");
  const auto size = std::filesystem::file_size(path, error);
  bytes_total_ = error ? 0 : static_cast<int64_t>(size);
  fill(kPieceBytes + separator_.size() + 1);
  check_text(text_, path_);
}

void TextStream::fill(size_t n_bytes) {
  while (text_.size() < n_bytes && file_) {
    const size_t old = text_.size();
    text_.resize(n_bytes);
    file_.read(text_.data() + old, static_cast<std::streamsize>(n_bytes - old));
    if (file_.bad()) throw Error(path_.string() + ": reading failed");
    text_.resize(old + static_cast<size_t>(file_.gcount()));
    bytes_read_ += file_.gcount();
  }
}

std::string TextStream::take_piece() {
  const bool continues = inside_document_;
  const size_t end = separator_.empty() ? std::string::npos : text_.find(separator_);
  std::string piece;
  if (end != std::string::npos && end <= kPieceBytes) {
    piece = text_.substr(0, end);
    text_.erase(0, end + separator_.size());
    inside_document_ = false;
  } else if (text_.size() > kPieceBytes) {
    const size_t cut = cut_point(text_, kPieceBytes);
    piece = text_.substr(0, cut);
    text_.erase(0, cut);
    inside_document_ = true;
  } else {
    piece = std::move(text_);
    text_.clear();
    inside_document_ = false;
  }
  trim_newlines(piece, !continues, !inside_document_);
  return piece;
}

bool TextStream::encode_next() {
  tokens_.clear();
  n_given_ = 0;
  while (tokens_.empty()) {
    fill(kPieceBytes + separator_.size() + 1);
    if (text_.empty()) return false;
    const bool starts = !inside_document_;
    const std::string piece = take_piece();
    piece_bytes_ = piece.size();
    if (piece.empty()) continue;
    if (starts) {
      ++n_documents_;
      if (const auto first = tokenizer_.bos() ? tokenizer_.bos() : tokenizer_.eos())
        tokens_.push_back(*first);
    }
    const std::vector<int32_t> ids = tokenizer_.encode(piece, /*add_special=*/false);
    tokens_.insert(tokens_.end(), ids.begin(), ids.end());
  }
  return true;
}

bool TextStream::read_document(int64_t n, std::vector<int32_t>& out) {
  if (at_end()) return false;
  while (true) {
    const auto first = tokens_.begin() + static_cast<int64_t>(n_given_);
    const auto count = std::min<int64_t>(n, tokens_.end() - first);
    out.insert(out.end(), first, first + count);
    n -= count;
    n_given_ = tokens_.size();
    while (n == 0 && inside_document_) {  // the rest is not needed
      fill(kPieceBytes + separator_.size() + 1);
      if (text_.empty()) break;
      take_piece();
    }
    if (!inside_document_ || !encode_next()) return true;
  }
}

double TextStream::share_given() const {
  if (bytes_total_ == 0) return 0;
  const double kept = tokens_.empty() ? 0
                                      : static_cast<double>(piece_bytes_) *
                                            static_cast<double>(tokens_.size() - n_given_) /
                                            static_cast<double>(tokens_.size());
  const double given = static_cast<double>(bytes_read_) - static_cast<double>(text_.size()) - kept;
  return std::clamp(given / static_cast<double>(bytes_total_), 0.0, 1.0);
}

bool TextStream::at_end() { return n_given_ == tokens_.size() && !encode_next(); }

int64_t TextStream::read(int64_t n, std::vector<int32_t>& out) {
  int64_t taken = 0;
  while (taken < n) {
    if (n_given_ == tokens_.size() && !encode_next()) break;
    const auto count =
        std::min<int64_t>(n - taken, static_cast<int64_t>(tokens_.size() - n_given_));
    const auto first = tokens_.begin() + static_cast<int64_t>(n_given_);
    out.insert(out.end(), first, first + count);
    n_given_ += static_cast<size_t>(count);
    taken += count;
  }
  return taken;
}

}  // namespace sluice::impl
