#include "select/counters.h"

#include <algorithm>

namespace sluice::impl {
namespace {

template <typename Count>
int64_t count_tokens(const TokenSet& set, const Count& counts) {
  int64_t n = 0;
  for (int64_t t = 0; t < set.n_tokens(); ++t) n += counts(t) ? 1 : 0;
  return n;
}

double share(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

TokenStatus status_at(const TokenSet& set, int64_t t) { return set.status[static_cast<size_t>(t)]; }

}  // namespace

int64_t n_reps(const TokenSet& set) {
  return count_tokens(set, [&](int64_t t) { return set.in_set(t); });
}

int64_t intersection(const TokenSet& a, const TokenSet& b) {
  SLUICE_CHECK(a.n_tokens() == b.n_tokens());
  return count_tokens(a, [&](int64_t t) { return a.in_set(t) && b.in_set(t); });
}

double jaccard(const TokenSet& a, const TokenSet& b) {
  const int64_t common = intersection(a, b), all = n_reps(a) + n_reps(b) - common;
  return all == 0 ? 1 : share(common, all);
}

double Turnover::rate() const { return share(additions + removals, n_inherited); }

Turnover turnover(const TokenSet& before, const TokenSet& after) {
  const int64_t common = intersection(before, after);
  return {n_reps(before), n_reps(after) - common, n_reps(before) - common};
}

double uncovered_share(const TokenSet& set) {
  const auto with = [&](TokenStatus status) {
    return count_tokens(set, [&](int64_t t) { return status_at(set, t) == status; });
  };
  return share(with(TokenStatus::kUncovered), set.n_tokens() - with(TokenStatus::kExempt));
}

OwnerCosine owner_cosine(const TokenSet& set) {
  SLUICE_CHECK(set.cosine.size() == set.status.size());
  double least = 1, sum = 0;
  int64_t n = 0;
  for (int64_t t = 0; t < set.n_tokens(); ++t) {
    if (set.in_set(t)) continue;
    const double cosine = set.cosine[static_cast<size_t>(t)];
    least = std::min(least, cosine);
    sum += cosine;
    ++n;
  }
  return {least, n == 0 ? 1 : sum / static_cast<double>(n)};
}

int64_t products_by_the_paper(SelectRule rule, const TokenSet& set, const TokenSet* inherited) {
  const int64_t n = set.n_tokens();
  if (set.tau == 0 || rule == SelectRule::kFixed) return 0;
  if (rule == SelectRule::kIndependent) return n * n;
  if (rule == SelectRule::kGreedy) return n * n_reps(set);
  SLUICE_CHECK(inherited != nullptr);
  return n * n_reps(*inherited);
}

int64_t keys_read(const TokenSet& set, HeadKind kind, const KeysRange& range) {
  const int64_t end = range.first + range.n_tokens;
  SLUICE_CHECK(end <= set.n_tokens());
  if (!range.causal) {
    const int64_t per_query = kind == HeadKind::kDense ? end : set.n_clusters;
    return range.n_tokens * per_query;
  }
  // Far keys before F: the first token of each cluster, exempt tokens, or every token.
  const auto counts = [&](int64_t t) {
    if (kind == HeadKind::kDense) return true;
    const TokenStatus status = status_at(set, t);
    return kind == HeadKind::kWindow ? status == TokenStatus::kExempt
                                     : status != TokenStatus::kRedundant;
  };
  int64_t total = 0, far = 0, border = 0;
  for (int64_t t = range.first; t < end; ++t) {
    const int64_t f = near_border(t, range.window, range.block);
    for (; border < f; ++border) far += counts(border) ? 1 : 0;
    total += far + t - f + 1;
  }
  return total;
}

}  // namespace sluice::impl
