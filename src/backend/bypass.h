// When a gate stops asking, on the host and on a device. docs/algorithm.md, section 4.

#pragma once

#include <algorithm>
#include <cstdint>

#ifdef __CUDACC__
#define SLUICE_HOST_DEVICE __host__ __device__
#else
#define SLUICE_HOST_DEVICE
#endif

namespace sluice::impl {

// Which path a token took through a gated linear layer.
enum class TokenPath : uint8_t {
  kSlow,      // projected, and by the dense weights after all
  kFast,      // by the image of the basis
  kBypassed,  // by the dense weights at once
};

struct BypassLimits {
  int32_t slow_tokens = 64;     // in a row, after which tokens pass the gate by
  int32_t retry_tokens = 1024;  // one token of so many is then tried again
};

// Where a gate stands with one sequence, whose tokens go through it in order. After slow_tokens
// slow ones in a row the gate passes tokens by. One of every retry_tokens is tried again, and a
// fast one opens the gate.
struct Bypass {
  int32_t slow_in_a_row = 0;
  int32_t to_skip = 0;  // tokens that pass by before the next try

  // Tokens that may be tried at once, few of them in vain: after the last slow one that is allowed
  // the others pass by.
  int64_t to_try(int64_t most, const BypassLimits& limits = {}) const {
    return slow_in_a_row < limits.slow_tokens / 2
               ? most
               : std::min<int64_t>(most, limits.slow_tokens - slow_in_a_row);
  }

  SLUICE_HOST_DEVICE void skip(int32_t n) { to_skip -= n; }
  SLUICE_HOST_DEVICE void decide(bool fast, const BypassLimits& limits = {}) {
    if (fast) {
      slow_in_a_row = 0;
    } else if (++slow_in_a_row == limits.slow_tokens) {
      --slow_in_a_row;  // the next try is the last again
      to_skip = limits.retry_tokens - 1;
    }
  }
};

}  // namespace sluice::impl
