// The loss that is accepted.

#pragma once

#include <limits>

#include "tune/loss.h"

namespace sluice::impl {

// Means are held with two standard errors over documents added, quantiles as they are found. A plan
// that loses a needle does not hold.
struct Contract {
  double max_kl = std::numeric_limits<double>::infinity();         // nats per token
  double max_ppl_ratio = std::numeric_limits<double>::infinity();  // against the exact model
  // What 99% and 99.9% of the tokens stay within: a mean does not show one place that is lost.
  double max_kl_p99 = std::numeric_limits<double>::infinity();
  double max_kl_p999 = std::numeric_limits<double>::infinity();

  // Of a mean, the tail that goes with it: 10 and 50 times as much.
  static Contract of_kl(double max_kl) {
    return {.max_kl = max_kl, .max_kl_p99 = 10 * max_kl, .max_kl_p999 = 50 * max_kl};
  }
  bool holds(const Loss& loss) const { return excess(loss) <= 1; }
  // How much of what is allowed is used up, so many standard errors added: the largest of all
  // ratios. Above 1 it is broken.
  double excess(const Loss& loss, double n_errors = 2) const;
  // The KL to begin with. ln(ppl ratio) is about as large, and may be smaller.
  double first_budget() const;
};

}  // namespace sluice::impl
