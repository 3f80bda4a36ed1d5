// Follows the sets of one tau down the layers of a window, and counts.

#pragma once

#include <random>

#include "backend/backend.h"
#include "eval/analyze/profile.h"

namespace sluice::impl {

struct ProfileSetsSpec {
  std::vector<SelectRule> rules;  // as asked for
  double tau = 0;
  int64_t row_width = 0;
  int64_t sinks = 0;
  double outlier_ratio = 0;
  uint64_t seed = 0;  // of the random control
  OwnerKind owner = OwnerKind::kEarlier;
};

// A set at a layer, and what it is compared with.
struct SetCounts {
  const TokenSet& set;          // with cosines
  const TokenSet& independent;  // of the same layer
  const TokenSet* before;       // that it inherits; nullptr at the first layer
  SelectRule rule;              // that ran
  int64_t products;             // of rows, computed
};
// Adds one number to each figure that is not about attention outputs.
void count_set(const SetCounts& counts, SetFigures& to);

// Holds the sets of one layer only: what the next one inherits.
class ProfileSets {
 public:
  ProfileSets(Backend& backend, ProfileSetsSpec spec);

  // The next layer is a first one again. Random sets depend on the window's index, not on the
  // windows before it.
  void begin_window(int64_t index);
  // Decides the next layer's sets from all rows of the window and adds one number to each of its
  // figures. The sets, in the order of set_kinds(), stay until the next call.
  const std::vector<TokenSet>& add_layer(const ConstTensor& rows, const ConstTensor& residual,
                                         std::vector<SetFigures>& figures);

 private:
  struct Decided {
    SelectRule rule;  // that ran: at the first layer not the cascade's own
    TokenSet set;
    int64_t products;
  };
  Decided decide(size_t kind, const ConstTensor& rows, const ConstTensor& residual);
  Decided run(SelectRule rule, const ConstTensor& rows, const ConstTensor& residual,
              const std::vector<uint8_t>& inherited) const;
  std::vector<uint8_t> random_flags(const TokenSet& like);

  Backend& backend_;
  ProfileSetsSpec spec_;
  std::vector<SetKind> kinds_;
  size_t leading_;                      // the controls are made from this kind
  std::vector<TokenSet> before_, now_;  // empty before_: this is the first layer
  std::mt19937_64 random_;
};

}  // namespace sluice::impl
