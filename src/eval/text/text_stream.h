// A text file as one stream of tokens, read piece by piece: memory does not grow with the file.

#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "io/tokenizer/tokenizer.h"

namespace sluice::impl {

// Documents are parted by a separator (it and the newlines around it are dropped); each begins
// with the tokenizer's BOS, or EOS where there is no BOS, as language models are trained. A
// document longer than kPieceBytes is encoded in pieces cut after a line end, which may differ
// from encoding it whole by a token or two at each cut.
class TextStream {
 public:
  static constexpr size_t kPieceBytes = size_t{1} << 20;

  TextStream(const std::filesystem::path& path, const Tokenizer& tokenizer, std::string separator);

  // Appends up to n tokens to out and returns how many; fewer only at the end of the text.
  int64_t read(int64_t n, std::vector<int32_t>& out);

  // Appends the rest of the document that the stream stands in, or the next one, up to n tokens,
  // and drops what is beyond; false at the end of the text.
  bool read_document(int64_t n, std::vector<int32_t>& out);
  // Whether all has been given out; reads on to find out.
  bool at_end();

  const Tokenizer& tokenizer() const { return tokenizer_; }
  // How much of the file has been given out, 0 to 1; tokens of a piece count as equally long. 0 of
  // what has no size, such as a pipe, until its end.
  double share_given() const;
  int64_t n_documents() const { return n_documents_; }

 private:
  bool encode_next();         // false at the end
  std::string take_piece();   // from text_; sets inside_document_
  void fill(size_t n_bytes);  // read until text_ holds so many, or the file ends

  const Tokenizer& tokenizer_;
  std::filesystem::path path_;
  std::string separator_;
  std::ifstream file_;
  std::string text_;  // read and not yet encoded
  std::vector<int32_t> tokens_;
  size_t n_given_ = 0;            // of tokens_
  size_t piece_bytes_ = 0;        // of the text that they are
  bool inside_document_ = false;  // the next piece continues a document
  int64_t bytes_read_ = 0, bytes_total_ = 0, n_documents_ = 0;
};

}  // namespace sluice::impl
