// From a loss that is accepted to the plan that saves most within it.

#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/evaluate.h"
#include "sluice/model.h"
#include "sluice/plan.h"

namespace sluice {

struct TuneOptions {
  // What the plan may lose; one of the two must be given. Means are held with two standard errors
  // added, on documents that the plan was not made from.
  std::optional<double> max_kl = {};         // nats per token
  std::optional<double> max_ppl_ratio = {};  // perplexity, as a multiple of dense's, 1 or more
  // What 99% and 99.9% of the tokens may lose. Default 10 and 50 times max_kl; infinity: no limit.
  std::optional<double> max_kl_p99 = {}, max_kl_p999 = {};
  Objective objective = Objective::kPrefill;
  // What heads may do that are not dense: kRefine, or kKeys, which Objective::kMemory needs.
  AttentionMode mode = AttentionMode::kRefine;
  int64_t context = 0;      // tokens of a window; 0: 1024, or the model's where it has fewer
  int64_t n_windows = 8;    // of text to tune on
  int64_t n_held_out = 16;  // of other documents to judge by, 2 or more
  bool needles = true;      // a plan that loses a fact far back which dense finds does not hold
  uint32_t seed = 0;        // which documents go where
  std::string separator = "<|endoftext|>";  // as in EvaluateOptions
  // A file for measurements, with which an interrupted run goes on and another contract need not
  // measure again; empty: none.
  std::filesystem::path measurements = {};
  // Called with the share done, 0 to 1, and what is done now. What it throws passes through.
  std::function<void(double, std::string_view)> progress = {};
};

// What a plan loses against dense on some windows; errors are those of means over documents.
struct TunedLoss {
  Measured kl;
  double kl_p99 = 0, kl_p999 = 0;
  Measured perplexity_ratio;
  int64_t n_tokens = 0, n_documents = 0;
  int64_t n_needles = 0, needles_dense = 0, needles_plan = 0;  // asked for, and found by each
};

struct TuneResult {
  Plan plan;                  // dense where nothing pays
  std::string dense_because;  // then, why
  TunedLoss calibration;      // on the windows that it was made from
  TunedLoss held_out;         // on the others
  double seconds = 0;
};

// Tunes on a text file, as `sluice tune` does, with times of this machine. The model's context is
// best 128 tokens longer than the windows, for decoding to be timed behind them. Takes minutes to
// hours. Of an encoder the loss is that of masked tokens. Throws Error for an encoder where
// decoding or memory is to be saved, a text of fewer than three windows, options out of range, and
// files that cannot be read or written.
SLUICE_API TuneResult tune(Model& model, const std::filesystem::path& text,
                           const TuneOptions& options);

}  // namespace sluice
