#include "tune/needles.h"

#include <algorithm>

#include "core/error.h"
#include "eval/needle/needle.h"

namespace sluice::impl {
namespace {

constexpr int64_t kWindowsPerNeedle = 8;
// Needles are no nearer to the question: they would be among its near keys.
constexpr double kDeepest = 0.75;

TuneWindow needle_window(const Tokenizer& tokenizer, const TuneWindow& haystack, double depth,
                         uint64_t seed) {
  try {
    NeedlePrompt prompt =
        make_needle(tokenizer, haystack.tokens,
                    {.context = std::ssize(haystack.tokens), .depth = depth, .seed = seed});
    return {.tokens = std::move(prompt.tokens), .n_prompt = prompt.n_prompt};
  } catch (const Error& error) {
    throw Error(error.what(), "a larger --context, or --no-needles");
  }
}

}  // namespace

void add_needles(const Tokenizer& tokenizer, uint32_t seed, TextSplit& split) {
  uint64_t next_seed = uint64_t{seed} << 32;
  int64_t next_unit = split.n_calibration_units + split.n_held_out_units;
  for (std::vector<TuneWindow>* windows : {&split.calibration, &split.held_out}) {
    const int64_t n = std::max<int64_t>(1, std::ssize(*windows) / kWindowsPerNeedle);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = i * (kWindowsPerNeedle + 1);  // of the window that lends its text
      const double depth = kDeepest * (static_cast<double>(i) + 0.5) / static_cast<double>(n);
      TuneWindow needle =
          needle_window(tokenizer, (*windows)[static_cast<size_t>(at)], depth, next_seed++);
      needle.unit = next_unit++;
      windows->insert(windows->begin() + at + 1, std::move(needle));
    }
    (windows == &split.calibration ? split.n_calibration_units : split.n_held_out_units) += n;
  }
}

}  // namespace sluice::impl
