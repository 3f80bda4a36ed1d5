// What is counted about sets: docs/algorithm.md, section 2, "Counters".

#pragma once

#include "backend/attend.h"

namespace sluice::impl {

int64_t n_reps(const TokenSet& set);  // tokens in the set, exempt ones included

// |a ∩ b| / |a ∪ b|, 1 for two empty sets.
double jaccard(const TokenSet& a, const TokenSet& b);
int64_t intersection(const TokenSet& a, const TokenSet& b);

// From one layer's set to the next layer's.
struct Turnover {
  int64_t n_inherited, additions, removals;
  double rate() const;  // (additions + removals) / n_inherited
};
Turnover turnover(const TokenSet& before, const TokenSet& after);

// Share of tokens, exempt ones left out, with no representative at or before them at the
// threshold; needs OwnerKind::kEarlier.
double uncovered_share(const TokenSet& set);

struct OwnerCosine {
  double least, mean;  // over tokens that do not own themselves; 1 and 1 where there are none
};
OwnerCosine owner_cosine(const TokenSet& set);  // needs cosines

// Products of rows by the paper's count, for a set that `rule` decided: n_tokens^2 for
// `independent`, n_tokens * n_reps for `greedy`, n_tokens * n_reps of the inherited set for a
// cascade, whose first layer runs first_rule(). 0 where nothing is validated: tau 0 and kFixed.
// inherited: may be nullptr for rules that do not inherit.
int64_t products_by_the_paper(SelectRule rule, const TokenSet& set, const TokenSet* inherited);

// Keys that queries [first, first + n_tokens) score in one query head of mode `keys`: clusters and
// exempt tokens before F(t), all tokens from F(t) to t. Not causal: all clusters.
struct KeysRange {
  int64_t first, n_tokens, window, block;
  bool causal;
};
int64_t keys_read(const TokenSet& set, HeadKind kind, const KeysRange& range);

}  // namespace sluice::impl
