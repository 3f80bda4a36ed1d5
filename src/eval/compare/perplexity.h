// Perplexity of a model over a text, in windows of the context's length.

#pragma once

#include <functional>

#include "eval/compare/running_mean.h"
#include "eval/text/text_stream.h"
#include "model/model.h"
#include "ranks/communicator.h"

namespace sluice::impl {

struct PerplexityOptions {
  int64_t max_windows = 0;  // 0: the whole text
  int64_t n_batch = 1;      // windows that go through the model together
  int64_t pass_tokens = 0;  // of all windows in one pass, 0: as many as pay; 1 is decoding
  Communicator* communicator = &alone();  // that windows are divided over
};

struct PerplexityResult {
  RunningMean loss;  // nats per predicted token
  int64_t n_windows = 0;

  double perplexity() const;
  double standard_error() const;  // of the perplexity: first order in that of the loss
};

// Every token but the text's first is predicted once (eval/text/windows.h). Windows are
// divided over ranks; every rank returns the same. `progress` is called after each window. Throws
// Error for an encoder, and for a text of fewer than two tokens.
PerplexityResult evaluate_perplexity(Model& model, TextStream& text,
                                     const PerplexityOptions& options,
                                     const std::function<void(const PerplexityResult&)>& progress);

}  // namespace sluice::impl
