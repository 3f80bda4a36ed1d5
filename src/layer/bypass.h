// When a gate stops asking. docs/algorithm.md, section 4.

#pragma once

#include <algorithm>
#include <cstdint>

namespace sluice::impl {

// Which way a token went through a gated linear layer.
enum class TokenWay : uint8_t {
  kSlow,      // projected, and by the dense weights after all
  kFast,      // by the image of the basis
  kBypassed,  // by the dense weights at once
};

// Goes through the tokens of a sequence in order. After kSlowTokens slow ones in a row the gate
// passes them by; every kRetryTokens one is tried again, and a fast one opens the gate.
class Bypass {
 public:
  static constexpr int64_t kSlowTokens = 64, kRetryTokens = 1024;

  int64_t to_skip() const { return to_skip_; }  // tokens that pass by before the next try
  int64_t slow_in_a_row() const { return slow_in_a_row_; }
  // Tokens that may be tried at once, few of them in vain: after the last slow one that is allowed
  // the others pass by.
  int64_t to_try(int64_t most) const {
    return slow_in_a_row_ < kSlowTokens / 2 ? most : std::min(most, kSlowTokens - slow_in_a_row_);
  }

  void skip(int64_t n) { to_skip_ -= n; }
  void decide(bool fast) {
    if (fast) {
      slow_in_a_row_ = 0;
    } else if (++slow_in_a_row_ == kSlowTokens) {
      --slow_in_a_row_;  // the next try is the last again
      to_skip_ = kRetryTokens - 1;
    }
  }

 private:
  int64_t slow_in_a_row_ = 0, to_skip_ = 0;
};

}  // namespace sluice::impl
