#include "select/received.h"

#include <utility>

namespace sluice::impl {

void pack_sets(std::span<const TokenSet> sets, int64_t first, Packer& out) {
  for (const TokenSet& set : sets) {
    std::vector<TokenStatus> status(set.status.begin() + first, set.status.end());
    std::vector<int32_t> owner(set.owner.begin() + first, set.owner.end());
    out(status, owner);
  }
}

ReceivedSelector::ReceivedSelector(SelectorSpec spec) : Selector(std::move(spec)) { reset(); }

void ReceivedSelector::append(Unpacker& in) {
  for (TokenSet& set : sets_) {
    const int64_t first = set.n_tokens();
    std::vector<TokenStatus> status;
    std::vector<int32_t> owner;
    in(status, owner);
    set.status.insert(set.status.end(), status.begin(), status.end());
    set.owner.insert(set.owner.end(), owner.begin(), owner.end());
    set.cluster.resize(set.status.size());
    set.number_clusters(first);
  }
}

void ReceivedSelector::reset() {
  sets_.assign(spec_.taus.size(), {});
  for (size_t i = 0; i < sets_.size(); ++i) sets_[i].tau = spec_.taus[i];
}

}  // namespace sluice::impl
