// How well a model predicts a text, and how far plans are from exactness on it.

#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/model.h"
#include "sluice/plan.h"

namespace sluice {

// A measured mean, and its standard error with the tokens taken as independent.
struct Measured {
  double value = 0;
  double standard_error = 0;
};

struct EvaluateOptions {
  int64_t max_windows = 0;  // of the model's context each; 0: the whole text
  // What parts documents in the file; empty for none. Each begins with the tokenizer's first token.
  std::string separator = "<|endoftext|>";
  // Called after each window with how many are done. What it throws passes through.
  std::function<void(int64_t n_windows)> progress = {};
  // Fill Evaluation::results, which reads every byte of the checkpoint once for its sha256.
  bool results = false;
};

// A plan compared with the exact model, on the same tokens.
struct PlanLoss {
  Measured perplexity;
  Measured perplexity_ratio;     // to dense; the error is of paired tokens
  Measured kl;                   // nats per token, KL(dense || plan)
  double kl_p99 = 0;             // 99% of the tokens have no more
  Measured top1_agreement;       // share of tokens with the same likeliest next one
  double keys_read = 1;          // share of the keys that dense attention reads
  double cache_bytes_share = 1;  // of dense's, at the end of a window
};

struct Evaluation {
  Measured perplexity;  // of the exact model
  Measured loss;        // the same as nats per token
  int64_t n_tokens = 0;
  int64_t n_windows = 0;
  std::vector<PlanLoss> plans;  // in the order given
  // Where it is asked for: all figures as JSON, as `sluice eval --json` writes them.
  // docs/results.md.
  std::string results = {};
};

// Predicts every token of a text file but its first, in windows of the model's context, exactly and
// by each of the plans, as `sluice eval` does. Throws Error for an encoder, a checkpoint without
// tokenizer or output matrix, a text that is missing or has fewer than two tokens, and a plan that
// the model cannot follow.
SLUICE_API Evaluation evaluate(Model& model, const std::filesystem::path& text,
                               std::span<const Plan> plans = {},
                               const EvaluateOptions& options = {});

}  // namespace sluice
