// A text as windows for tuning and windows for judging, with no document in both.

#pragma once

#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "eval/text/masked_windows.h"
#include "eval/text/text_stream.h"

namespace sluice::impl {

// Windows of one unit come from the same documents; units have none in common, so figures of
// different units count as independent.
struct TuneWindow {
  std::vector<int32_t> tokens;  // context + 1; of an encoder the context, masks among them
  int64_t unit = 0;
  int64_t n_prompt = 0;  // of a needle: tokens before the answer; 0 elsewhere
  // Of an encoder: where the masks are, ascending, and what is behind them. Empty elsewhere.
  std::vector<int32_t> places = {}, truth = {};

  bool masked() const { return !places.empty(); }
  int64_t n_answer() const { return n_prompt > 0 ? std::ssize(tokens) - n_prompt : 0; }
  // What the model reads.
  std::span<const int32_t> inputs() const {
    return std::span(tokens).first(tokens.size() - (masked() ? 0 : 1));
  }
  // Tokens that it predicts: behind the masks, or after each input.
  int64_t n_predicted() const { return masked() ? std::ssize(places) : std::ssize(tokens) - 1; }
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

// The same for an encoder, whose windows are enclosed and masked as eval has them (MaskedWindows),
// but with the same number of masks in each: a share of its tokens. options.seed places them.
// Throws Error also for what MaskedWindows refuses, and for windows of special tokens.
TextSplit split_masked_text(const Model& model, TextStream& text, const SplitOptions& options);

}  // namespace sluice::impl
