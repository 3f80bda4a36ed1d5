// A text as windows for tuning and windows for judging, with no document in both.

#pragma once

#include <cstdint>
#include <iterator>
#include <vector>

#include "eval/text/text_stream.h"

namespace sluice::impl {

// Windows of one unit come from the same documents; units have none in common, so figures of
// different units count as independent.
struct TuneWindow {
  std::vector<int32_t> tokens;  // context + 1
  int64_t unit = 0;
  int64_t n_prompt = 0;  // of a needle: tokens before the answer; 0 elsewhere
  int64_t n_answer() const { return n_prompt > 0 ? std::ssize(tokens) - n_prompt : 0; }
};

struct TextSplit {
  std::vector<TuneWindow> calibration, held_out;
  int64_t n_calibration_units = 0, n_held_out_units = 0;
  bool one_document = false;  // which had to be cut in two
};

struct SplitOptions {
  int64_t context = 0;
  int64_t n_calibration = 8, n_held_out = 16;  // windows, at most
  uint32_t seed = 0;
};

// Documents shorter than a window are joined until they fill one. Of each unit one window is taken,
// and more only where there are too few units: many documents have a say. Throws Error for a text
// of fewer than three windows.
TextSplit split_text(TextStream& text, const SplitOptions& options);

}  // namespace sluice::impl
