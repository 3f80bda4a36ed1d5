// Perplexity of a model over a text, in windows of the context's length.

#pragma once

#include <functional>

#include "eval/text_stream.h"
#include "model/model.h"

namespace sluice {

// Mean and standard error of a stream of numbers (Welford's update).
class RunningMean {
 public:
  void add(double x);
  int64_t count() const { return count_; }
  double mean() const { return mean_; }
  double standard_error() const;  // 0 for fewer than two numbers

 private:
  int64_t count_ = 0;
  double mean_ = 0, squares_ = 0;
};

struct PerplexityOptions {
  int64_t max_windows = 0;  // 0: the whole text
};

struct PerplexityResult {
  RunningMean loss;  // nats per predicted token
  int64_t n_windows = 0;

  double perplexity() const;
  double standard_error() const;  // of the perplexity: first order in that of the loss
};

// Windows follow each other without overlap; every token after a window's first is predicted,
// and the first token of the next window too, so each token but the text's first counts once.
// `progress` is called after each window. Throws Error for a text of fewer than two tokens.
PerplexityResult evaluate_perplexity(Model& model, TextStream& text,
                                     const PerplexityOptions& options,
                                     const std::function<void(const PerplexityResult&)>& progress);

}  // namespace sluice
