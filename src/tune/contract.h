// The loss that is accepted.

#pragma once

#include <limits>

#include "tune/loss.h"

namespace sluice {

// Held by the mean plus two standard errors over documents.
struct Contract {
  double max_kl = std::numeric_limits<double>::infinity();         // nats per token
  double max_ppl_ratio = std::numeric_limits<double>::infinity();  // against the exact model

  bool holds(const Loss& loss) const { return excess(loss) <= 1; }
  // How much of what is allowed is used up, so many standard errors added; above 1 it is broken.
  double excess(const Loss& loss, double n_errors = 2) const;
  // The KL to begin with. ln(ppl ratio) is about as large, and may be smaller.
  double first_budget() const;
};

}  // namespace sluice
