// Sets written out by hand for the tests of this folder.

#pragma once

#include <string_view>

#include "backend/select.h"

namespace sluice::impl::test {

// One letter per token: r representative, x exempt, u uncovered, a dot for redundant. A token that
// is not in the set belongs to the last representative before it.
inline TokenSet small_set(std::string_view letters, double tau = 0.3) {
  TokenSet set;
  set.tau = tau;
  int32_t rep = 0;
  for (int32_t t = 0; t < static_cast<int32_t>(letters.size()); ++t) {
    const char letter = letters[static_cast<size_t>(t)];
    if (letter == 'r') rep = t;
    const bool in_set = letter == 'r' || letter == 'x';
    set.status.push_back(letter == 'r'   ? TokenStatus::kRepresentative
                         : letter == 'x' ? TokenStatus::kExempt
                         : letter == 'u' ? TokenStatus::kUncovered
                                         : TokenStatus::kRedundant);
    set.owner.push_back(in_set ? t : rep);
    set.cluster.push_back(letter == '.' ? set.cluster[static_cast<size_t>(rep)]
                                        : static_cast<int32_t>(set.n_clusters++));
  }
  return set;
}

}  // namespace sluice::impl::test
