// Hand-made sets for the tests of attention, which must hold for any set a rule might choose.

#pragma once

#include <random>

#include "backend/select.h"

namespace sluice::impl::test {

struct SetShape {
  double reps = 0.3, exempt = 0.03, uncovered = 0.03;  // shares of the tokens
  int64_t sinks = 0;
};

inline TokenStatus random_status(const SetShape& shape, int64_t t, std::mt19937& random) {
  const double x = static_cast<double>(random()) * 0x1p-32;
  if (t < shape.sinks || x < shape.exempt) return TokenStatus::kExempt;
  if (x < shape.exempt + shape.uncovered) return TokenStatus::kUncovered;
  return x < shape.exempt + shape.uncovered + shape.reps ? TokenStatus::kRepresentative
                                                         : TokenStatus::kRedundant;
}

// Numbers the clusters and gives redundant tokens owners among the representatives, before them or
// (encoders) anywhere.
inline void complete(TokenSet& set, int64_t first, bool anywhere, std::mt19937& random) {
  std::vector<int32_t> reps;
  for (int64_t t = 0; t < set.n_tokens(); ++t)
    if ((anywhere || t < first) &&
        set.status[static_cast<size_t>(t)] == TokenStatus::kRepresentative)
      reps.push_back(static_cast<int32_t>(t));
  for (int64_t t = first; t < set.n_tokens(); ++t) {
    TokenStatus& status = set.status[static_cast<size_t>(t)];
    if (status == TokenStatus::kRedundant && reps.empty()) status = TokenStatus::kRepresentative;
    const bool redundant = status == TokenStatus::kRedundant;
    if (status == TokenStatus::kRepresentative && !anywhere)
      reps.push_back(static_cast<int32_t>(t));
    set.owner.push_back(redundant ? reps[random() % reps.size()] : static_cast<int32_t>(t));
    set.cluster.push_back(redundant ? -1 : static_cast<int32_t>(set.n_clusters++));
  }
  for (int64_t t = first; t < set.n_tokens(); ++t) {
    int32_t& cluster = set.cluster[static_cast<size_t>(t)];
    if (cluster < 0) cluster = set.cluster[static_cast<size_t>(set.owner[static_cast<size_t>(t)])];
  }
}

// Adds random tokens until there are n_tokens; what is there stays.
inline void grow(TokenSet& set, int64_t n_tokens, const SetShape& shape, uint32_t seed,
                 bool anywhere = false) {
  std::mt19937 random(seed);
  const int64_t first = set.n_tokens();
  for (int64_t t = first; t < n_tokens; ++t) set.status.push_back(random_status(shape, t, random));
  complete(set, first, anywhere, random);
}

// Adds n tokens that go to the first of the set, a representative.
inline void crowd(TokenSet& set, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    set.status.push_back(TokenStatus::kRedundant);
    set.owner.push_back(0);
    set.cluster.push_back(0);
  }
}

inline TokenSet random_set(int64_t n_tokens, const SetShape& shape, uint32_t seed,
                           bool anywhere = false) {
  TokenSet set;
  grow(set, n_tokens, shape, seed, anywhere);
  return set;
}

// Everyone stands for itself.
inline TokenSet all_tokens(int64_t n_tokens) {
  return random_set(n_tokens, {.reps = 1, .exempt = 0, .uncovered = 0}, 1);
}

// The set as it was after the first n tokens; owners must be earlier.
inline TokenSet start_of(TokenSet set, int64_t n_tokens) {
  const auto n = static_cast<size_t>(n_tokens);
  set.status.resize(n);
  set.owner.resize(n);
  set.cluster.resize(n);
  set.n_clusters = 0;
  for (const TokenStatus status : set.status)
    set.n_clusters += status == TokenStatus::kRedundant ? 0 : 1;
  return set;
}

}  // namespace sluice::impl::test
