#include "select/received.h"

#include <utility>

namespace sluice::impl {

void pack_sets(std::span<const TokenSet> sets, int64_t first, Bytes& out) {
  SLUICE_CHECK(!sets.empty() && first <= sets[0].n_tokens());
  const auto begin = static_cast<size_t>(first);
  pack(sets[0].n_tokens() - first, out);
  for (const TokenSet& set : sets) {
    pack(std::span(set.status).subspan(begin), out);
    pack(std::span(set.owner).subspan(begin), out);
  }
}

ReceivedSelector::ReceivedSelector(SelectorSpec spec) : Selector(std::move(spec)) { reset(); }

void ReceivedSelector::append(std::span<const std::byte>& in) {
  const auto n = unpack<int64_t>(in);
  for (TokenSet& set : sets_) {
    const int64_t first = set.n_tokens();
    set.status.resize(static_cast<size_t>(first + n));
    set.owner.resize(set.status.size());
    set.cluster.resize(set.status.size());
    unpack(in, std::span(set.status).subspan(static_cast<size_t>(first)));
    unpack(in, std::span(set.owner).subspan(static_cast<size_t>(first)));
    set.number_clusters(first);
  }
}

void ReceivedSelector::reset() {
  sets_.assign(spec_.taus.size(), {});
  for (size_t i = 0; i < sets_.size(); ++i) sets_[i].tau = spec_.taus[i];
}

}  // namespace sluice::impl
