// Two modes on the same windows of a text: the difference of their means, and a 95% interval of it
// by a paired bootstrap over windows. Tokens of one window depend on each other, so a window is
// drawn whole. Windows of one document depend on each other too; a text of many documents makes the
// interval an honest one.

#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace sluice::impl {

// What is summed over the tokens of one window.
struct WindowSum {
  double sum = 0;
  int64_t n_tokens = 0;
};

struct PairedInterval {
  double mean;       // of all tokens
  double low, high;  // percentiles 2.5 and 97.5 of the mean over windows drawn with replacement
};

// Below this many windows no interval is given: the range of n means holds the middle of their
// distribution with probability 1 - 2^(1-n), which is above 95% from six on.
inline constexpr size_t kLeastPairedWindows = 6;
inline constexpr int kPairedResamples = 10000;

// differences: of each window, the sums of one mode less those of the other over the same tokens.
// The same seed gives the same interval on every machine.
std::optional<PairedInterval> paired_interval(std::span<const WindowSum> differences,
                                              uint64_t seed = 0);

}  // namespace sluice::impl
