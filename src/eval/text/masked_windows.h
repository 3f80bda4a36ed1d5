// A text as windows of an encoder's context with some tokens masked, which are to be predicted.

#pragma once

#include <random>
#include <span>
#include <vector>

#include "eval/text/text_stream.h"
#include "model/model.h"

namespace sluice::impl {

struct MaskOptions {
  double share = 0.15;  // of the tokens that are not special, above 0 and below 1
  uint64_t seed = 0;
};

// What stands around a window, and for a token that is hidden.
struct MaskTemplate {
  std::vector<int32_t> tokens;  // first half before a window, the rest behind it
  int32_t mask_id = 0;

  std::vector<int32_t> enclosed(std::span<const int32_t> window) const;
};
// Throws Error for a tokenizer without a mask, a model without a head, and a context that has no
// room for text.
MaskTemplate mask_template(const Model& model, const Tokenizer& tokenizer, int64_t context);

// Windows follow each other without overlap; each is enclosed by what the tokenizer's template puts
// around a text ([CLS] and [SEP]). Every token that is not special is masked with probability
// `share`, and then always shown as the mask; at least one of a window is.
class MaskedWindows {
 public:
  // max_windows 0: the whole text. Throws Error for a share out of range, a tokenizer without a
  // mask, a model without a head, and a context that has no room for text.
  MaskedWindows(const Model& model, TextStream& text, MaskOptions options, int64_t max_windows);

  bool next();  // false at the end. Throws Error for a text without a token to mask
  std::span<const int32_t> tokens() const { return tokens_; }  // masks among them
  std::span<const int32_t> places() const { return places_; }  // of the masks, ascending
  std::span<const int32_t> truth() const { return truth_; }    // what is behind them
  int64_t n_windows() const { return n_windows_; }

 private:
  void mask();

  TextStream& text_;
  MaskOptions options_;
  int64_t context_, max_windows_, n_windows_ = 0;
  MaskTemplate template_;
  std::mt19937_64 random_;
  std::vector<int32_t> tokens_, places_, truth_;
};

}  // namespace sluice::impl
