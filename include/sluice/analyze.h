// Which tokens of a text represent the others, at every layer of a model.

#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "sluice/model.h"

namespace sluice {

struct AnalyzeOptions {
  std::vector<double> taus = {0.3};  // tokens of cosine 1 - tau^2 or more are redundant
  int64_t context = 0;      // tokens of a window; 0: 512, or the model's where it has fewer
  int64_t max_windows = 4;  // of the text, from its beginning
  std::string separator = "<|endoftext|>";  // as in EvaluateOptions
  // Called with the share done, 0 to 1. What it throws passes through.
  std::function<void(double)> progress = {};
};

// Follows the sets of representatives from layer to layer over windows of a text file, by the rules
// that `sluice analyze` follows by default. Returns the figures as JSON, as `sluice analyze --json`
// writes them (docs/results.md). Throws Error for a checkpoint without tokenizer, a text that is
// missing or has not one window, and options out of range.
SLUICE_API std::string analyze(Model& model, const std::filesystem::path& text,
                               const AnalyzeOptions& options = {});

}  // namespace sluice
