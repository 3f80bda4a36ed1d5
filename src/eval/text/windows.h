// A text as windows of a model's context, for predicting every token once.

#pragma once

#include <functional>
#include <span>
#include <vector>

#include "eval/text/text_stream.h"
#include "model/model.h"

namespace sluice::impl {

// Tokens of one pass through the layers, so that memory for activations stays bounded.
inline constexpr int64_t kPassTokens = 2048;
// Rows of scores that exist at one time: at a vocabulary of 128 Ki, 128 rows are 64 MiB.
inline constexpr int64_t kScoreRows = 128;

// Windows follow each other without overlap; every token after a window's first is predicted,
// and the first token of the next window too, so each token but the text's first counts once.
class TextWindows {
 public:
  // max_windows 0: the whole text. Throws Error for a model that does not predict what follows.
  TextWindows(const Model& model, TextStream& text, int64_t max_windows);

  bool next();  // false at the end. Throws Error for a text of fewer than two tokens
  // Of this window and the token after it: at least two, at most context + 1, each but the last
  // to be read, each but the first to be predicted.
  std::span<const int32_t> tokens() const { return tokens_; }
  int64_t n_windows() const { return n_windows_; }

 private:
  TextStream& text_;
  int64_t context_, max_windows_, n_windows_ = 0;
  std::vector<int32_t> tokens_;
};

// One pass over a sequence, with an observer for it alone; the rows of the last layer.
ConstTensor observed_forward(Model& model, std::span<const int32_t> tokens, KvCache& cache,
                             AttentionObserver observer);

// Runs tokens after those that the cache has, at most max_tokens at a time; `use` gets the hidden
// states, (n_rows, d_model), of tokens first ... first + n_rows.
void forward_in_passes(Model& model, std::span<const int32_t> tokens, KvCache& cache,
                       int64_t max_tokens,
                       const std::function<void(int64_t first, ConstTensor hidden)>& use);

// Error unless the number is finite: damaged weights, or values too large for the dtype.
void check_finite(double x);

}  // namespace sluice::impl
