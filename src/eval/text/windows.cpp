#include "eval/text/windows.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/scores_error.h"

namespace sluice::impl {

TextWindows::TextWindows(const Model& model, TextStream& text, int64_t max_windows)
    : text_(text), context_(model.context()), max_windows_(max_windows) {
  if (!model.spec().causal)
    throw Error(model.spec().family + " is an encoder, perplexity is defined for causal models",
                "eval needs a causal model such as GPT-2 or Llama");
}

bool TextWindows::next() {
  if (max_windows_ > 0 && n_windows_ == max_windows_) return false;
  // The last token of a window is read again as the first of the next one.
  if (!tokens_.empty()) tokens_.erase(tokens_.begin(), tokens_.end() - 1);
  text_.read(context_ + 1 - static_cast<int64_t>(tokens_.size()), tokens_);
  if (tokens_.size() < 2) {
    if (n_windows_ > 0) return false;
    throw Error("the text has fewer than two tokens, nothing can be predicted",
                "-f takes a text file with at least a few sentences");
  }
  ++n_windows_;
  return true;
}

ConstTensor observed_forward(Model& model, std::span<const int32_t> tokens, KvCache& cache,
                             AttentionObserver observer) {
  model.observe(std::move(observer));
  try {
    const ConstTensor rows = model.forward(tokens, cache);
    model.observe({});
    return rows;
  } catch (...) {
    model.observe({});  // it refers to its maker
    throw;
  }
}

void forward_in_passes(Model& model, std::span<const int32_t> tokens, KvCache& cache,
                       int64_t max_tokens,
                       const std::function<void(int64_t first, ConstTensor hidden)>& use) {
  const auto n = static_cast<int64_t>(tokens.size());
  for (int64_t first = 0; first < n; first += max_tokens) {
    const auto count = static_cast<size_t>(std::min(max_tokens, n - first));
    use(first, model.forward(tokens.subspan(static_cast<size_t>(first), count), cache));
  }
}

void check_finite(double x) {
  if (!std::isfinite(x)) throw ScoresError();
}

}  // namespace sluice::impl
