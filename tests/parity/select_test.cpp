// What each selection rule promises (docs/algorithm.md, section 2), checked against all cosines,
// and the sets of every backend against the reference's.

#include <numeric>

#include "parity/select_cases.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

const std::vector<double> kTaus = {0.1, 0.3, 0.5, 0.8};

std::vector<SelectCase> small_cases() {
  std::vector<SelectCase> cases;
  uint32_t seed = 0;
  for (int round = 0; round < 2; ++round)
    for (const RowKind kind : kRowKinds)
      for (const int64_t n_tokens : {1, 2, 3, 7, 24, 40})
        for (const int64_t d_model : {1, 3, 37, 64, 193}) {
          ++seed;
          cases.push_back({kind, n_tokens, d_model, kTaus[seed % kTaus.size()], seed});
        }
  return cases;
}

// Calls check(inputs, gram, i, set) for set i of every small case.
template <typename Check>
void for_all_small(Backend& backend, DType dtype, SelectRule rule, const Check& check) {
  for (const SelectCase& c : thinned(small_cases(), 37)) {
    SCOPED_TRACE(testing::PrintToString(c));
    const SelectInputs in = select_inputs(c, dtype, rule, kTaus);
    const Gram gram(in.rows, c.n_tokens, c.d_model);
    const auto sets = select(backend, dtype, in);
    ASSERT_EQ(sets.size(), kTaus.size());
    for (size_t i = 0; i < sets.size(); ++i) {
      ASSERT_EQ(sets[i].tau, kTaus[i]);
      ASSERT_EQ(sets[i].n_tokens(), c.n_tokens);
      check(in, gram, i, sets[i]);
    }
    if (testing::Test::HasFailure()) return;
  }
}

// Whether a token of [0, end) other than t for which `counts` holds has this cosine to t.
template <typename Counts>
bool any_at(const Gram& gram, int64_t t, int64_t end, double threshold, bool absolute,
            const Counts& counts) {
  for (int64_t s = 0; s < end; ++s)
    if (s != t && counts(s) && (absolute ? std::abs(gram(s, t)) : gram(s, t)) >= threshold)
      return true;
  return false;
}

TEST_P(EveryImplementation, IndependentKeepsTokensUnlikeAllEarlierOnes) {
  for_all_small(*backend, dtype(), SelectRule::kIndependent,
                [](const SelectInputs& in, const Gram& gram, size_t, const TokenSet& set) {
                  for (int64_t t = 0; t < in.n_tokens; ++t)
                    ASSERT_NE(set.in_set(t), any_at(gram, t, t, threshold_of(set.tau), true,
                                                    [](int64_t) { return true; }))
                        << "token " << t << ", tau " << set.tau;
                });
}

// Every token has a representative at or before it, and knows it.
void expect_causal_cover(const Gram& gram, const TokenSet& set) {
  for (int64_t t = 0; t < set.n_tokens(); ++t) {
    const int64_t owner = set.owner[static_cast<size_t>(t)];
    ASSERT_LE(owner, t);
    ASSERT_TRUE(set.in_set(owner));
    ASSERT_TRUE(owner == t || gram(owner, t) >= threshold_of(set.tau)) << "token " << t;
    ASSERT_NE(set.status[static_cast<size_t>(t)], TokenStatus::kUncovered) << "token " << t;
  }
}

// Any two tokens of the set for which `counts` holds are further apart than the threshold.
template <typename Counts>
void expect_apart(const Gram& gram, const TokenSet& set, const Counts& counts) {
  for (int64_t t = 0; t < set.n_tokens(); ++t)
    if (set.in_set(t) && counts(t)) {
      ASSERT_FALSE(any_at(gram, t, t, threshold_of(set.tau), false,
                          [&](int64_t s) { return set.in_set(s) && counts(s); }))
          << "token " << t << ", tau " << set.tau;
    }
}

TEST_P(EveryImplementation, GreedyCoversWithRepresentativesThatAreApart) {
  for_all_small(*backend, dtype(), SelectRule::kGreedy,
                [](const SelectInputs&, const Gram& gram, size_t, const TokenSet& set) {
                  expect_causal_cover(gram, set);
                  expect_apart(gram, set, [](int64_t) { return true; });
                });
}

TEST_P(EveryImplementation, CascadeCoverCoversAndItsTwoPartsAreApart) {
  for_all_small(*backend, dtype(), SelectRule::kCascadeCover,
                [](const SelectInputs& in, const Gram& gram, size_t i, const TokenSet& set) {
                  const auto inherited = [&](int64_t t) {
                    return in.inherited[i][static_cast<size_t>(t)] != 0;
                  };
                  expect_causal_cover(gram, set);
                  expect_apart(gram, set, inherited);
                  expect_apart(gram, set, [&](int64_t t) { return !inherited(t); });
                  // What is dropped or not added has a reason, and in the right part.
                  for (int64_t t = 0; t < in.n_tokens; ++t)
                    if (!set.in_set(t)) {
                      ASSERT_TRUE(any_at(gram, t, t, threshold_of(set.tau), false,
                                         [&](int64_t s) {
                                           return set.in_set(s) && (inherited(s) || !inherited(t));
                                         }))
                          << "token " << t;
                    }
                });
}

// Algorithm 1: inherited tokens against all earlier inherited ones, the others against the valid
// ones, at any position (the paper) or before them.
void expect_algorithm_1(Backend& backend, DType dtype, SelectRule rule) {
  for_all_small(backend, dtype, rule,
                [&](const SelectInputs& in, const Gram& gram, size_t i, const TokenSet& set) {
                  const auto inherited = [&](int64_t t) {
                    return in.inherited[i][static_cast<size_t>(t)] != 0;
                  };
                  const auto valid = [&](int64_t t) { return inherited(t) && set.in_set(t); };
                  const double threshold = threshold_of(set.tau);
                  const bool anywhere = rule == SelectRule::kCascadePaper;
                  for (int64_t t = 0; t < in.n_tokens; ++t) {
                    const bool redundant =
                        inherited(t)
                            ? any_at(gram, t, t, threshold, true, inherited)
                            : any_at(gram, t, anywhere ? in.n_tokens : t, threshold, true, valid);
                    ASSERT_NE(set.in_set(t), redundant) << "token " << t << ", tau " << set.tau;
                  }
                });
}

TEST_P(EveryImplementation, CascadePaperIsAlgorithm1) {
  expect_algorithm_1(*backend, dtype(), SelectRule::kCascadePaper);
}

TEST_P(EveryImplementation, CascadeCausalIsAlgorithm1WithoutTheFuture) {
  expect_algorithm_1(*backend, dtype(), SelectRule::kCascadeCausal);
}

TEST_P(EveryImplementation, FixedIsTheInheritedSet) {
  for_all_small(
      *backend, dtype(), SelectRule::kFixed,
      [](const SelectInputs& in, const Gram& gram, size_t i, const TokenSet& set) {
        for (int64_t t = 0; t < in.n_tokens; ++t) {
          ASSERT_EQ(set.in_set(t), in.inherited[i][static_cast<size_t>(t)] != 0);
          const bool covered = set.in_set(t) || any_at(gram, t, t, threshold_of(set.tau), false,
                                                       [&](int64_t s) { return set.in_set(s); });
          ASSERT_NE(covered, set.status[static_cast<size_t>(t)] == TokenStatus::kUncovered)
              << "token " << t;
        }
      });
}

std::vector<uint8_t> flags_of(const TokenSet& set) {
  std::vector<uint8_t> flags;
  for (int64_t t = 0; t < set.n_tokens(); ++t) flags.push_back(set.in_set(t) ? 1 : 0);
  return flags;
}

TEST_P(EveryImplementation, CascadeCausalHoldsTheIndependentSetAtEveryLayer) {
  std::vector<uint32_t> seeds(30);
  std::iota(seeds.begin(), seeds.end(), 1);
  for (const uint32_t seed : thinned(seeds, seeds.size())) {
    const SelectCase c{kRowKinds[seed % 6], 40, 37, 0.5, seed};
    SelectInputs in = select_inputs(c, dtype(), SelectRule::kIndependent, {c.tau});
    auto cascade = select(*backend, dtype(), in);
    for (uint32_t layer = 1; layer < (kFewCases ? 3 : 6); ++layer) {
      SCOPED_TRACE(testing::PrintToString(c) + ", layer " + std::to_string(layer));
      const auto drift = random_values(c.n_tokens * c.d_model, seed + 100 * layer, dtype(), 0.3f);
      for (size_t i = 0; i < in.rows.size(); ++i)
        in.rows[i] = rounded(dtype(), in.rows[i] + drift[i]);
      in.spec.rule = SelectRule::kIndependent;
      in.inherited.clear();
      const auto independent = select(*backend, dtype(), in);
      in.spec.rule = SelectRule::kCascadeCausal;
      in.inherited = {flags_of(cascade[0])};
      cascade = select(*backend, dtype(), in);
      for (int64_t t = 0; t < c.n_tokens; ++t)
        ASSERT_LE(independent[0].in_set(t), cascade[0].in_set(t)) << "token " << t;
    }
  }
}

// Proposition 4 of the paper is false: rows (e1, e1, e2), then (e1, e2, e2).
TEST_P(EveryImplementation, CascadePaperMissesATrueRepresentative) {
  SelectInputs in =
      select_inputs({.n_tokens = 3, .d_model = 2}, dtype(), SelectRule::kIndependent, {0.3});
  in.rows = {1, 0, 1, 0, 0, 1};
  const auto first = select(*backend, dtype(), in);
  EXPECT_EQ(flags_of(first[0]), (std::vector<uint8_t>{1, 0, 1}));
  in.rows = {1, 0, 0, 1, 0, 1};
  EXPECT_EQ(flags_of(select(*backend, dtype(), in)[0]), (std::vector<uint8_t>{1, 1, 0}));
  in.inherited = {flags_of(first[0])};
  in.spec.rule = SelectRule::kCascadePaper;
  EXPECT_EQ(flags_of(select(*backend, dtype(), in)[0]), (std::vector<uint8_t>{1, 0, 1}));
  in.spec.rule = SelectRule::kCascadeCausal;
  EXPECT_EQ(flags_of(select(*backend, dtype(), in)[0]), (std::vector<uint8_t>{1, 1, 1}));
}

TEST_P(EveryImplementation, RowsOfZerosRepresentThemselves) {
  for (const SelectRule rule : kAllRules) {
    SelectInputs in = select_inputs({.n_tokens = 4, .d_model = 3}, dtype(), rule, {0.9});
    in.rows = {0, 0, 0, 1, 2, 3, 0, 0, 0, 1, 2, 3};
    if (inherits(rule)) in.inherited = {{1, 1, 1, 0}};
    EXPECT_EQ(flags_of(select(*backend, dtype(), in)[0]), (std::vector<uint8_t>{1, 1, 1, 0}));
  }
}

// Tiles, blocks of representatives and threads: sizes that cross their borders.
const SelectCase kLargeCases[] = {
    {RowKind::kRandom, 300, 64, 0.8, 1},        {RowKind::kClusters, 700, 64, 0.5, 2},
    {RowKind::kChain, 400, 64, 0.3, 3},         {RowKind::kChain, 515, 3, 0.5, 4},
    {RowKind::kDuplicates, 513, 64, 0.3, 5},    {RowKind::kLattice, 600, 64, 0.5, 6},
    {RowKind::kNearThreshold, 300, 64, 0.3, 7}, {RowKind::kNearThreshold, 320, 193, 0.5, 8},
    {RowKind::kClusters, 257, 193, 0.3, 9},     {RowKind::kRandom, 333, 37, 0.9, 10},
    {RowKind::kLattice, 500, 1, 0.3, 11},       {RowKind::kClusters, 300, 700, 0.5, 12},
};

TEST_P(EveryBackend, LargeSetsEqualTheReferences) {
  if (kSanitized && dtype() == DType::kBF16)
    GTEST_SKIP() << "as long again under a sanitizer; small sets run there";
  for (const auto& [c, rule] : sampled(thinned(combinations(kLargeCases, kAllRules), 11), 5)) {
    SCOPED_TRACE(testing::PrintToString(c) + ", rule " + std::to_string(static_cast<int>(rule)));
    SelectInputs in = select_inputs(c, dtype(), rule, {c.tau, 0.6});
    in.spec.sinks = c.seed % 2 == 0 ? 4 : 0;
    in.spec.outlier_ratio = c.seed % 3 == 0 ? 1.5 : 0;
    for (const OwnerKind owner : {OwnerKind::kEarlier, OwnerKind::kAnywhere, OwnerKind::kPaper}) {
      // Every owner kind on every input would take long: each rule meets each kind somewhere.
      if (owner != OwnerKind::kEarlier &&
          (c.seed + static_cast<uint32_t>(rule)) % 3 != static_cast<uint32_t>(owner))
        continue;
      in.spec.owner = owner;
      EXPECT_TRUE(same_sets(select(*backend, dtype(), in), select(*reference, DType::kF32, in)));
    }
  }
}

// The plants are what they claim to be: on both sides of the threshold, and nearer to it than a
// sum of float32 products could tell.
TEST(SelectCases, NearThresholdRowsAreNearTheThreshold) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const SelectCase c{RowKind::kNearThreshold, 100, 64, 0.3, 7};
    const Gram gram(select_rows(c, dtype), c.n_tokens, c.d_model);
    int64_t n_above = 0, n_below = 0;
    for (int64_t t = 0; t < c.n_tokens; ++t)
      for (int64_t s = 0; s < t; ++s) {
        const double distance = gram(s, t) - threshold_of(c.tau);
        if (std::abs(distance) < 1e-7) ++(distance < 0 ? n_below : n_above);
      }
    EXPECT_GT(n_above, 20);
    EXPECT_GT(n_below, 20);
  }
}

TEST_P(EveryBackend, SmallSetsEqualTheReferences) {
  for (const auto& [c, rule] : thinned(combinations(small_cases(), kAllRules), 157)) {
    SCOPED_TRACE(testing::PrintToString(c) + ", rule " + std::to_string(static_cast<int>(rule)));
    SelectInputs in = select_inputs(c, dtype(), rule, kTaus);
    in.spec.sinks = c.seed % 3;
    in.spec.outlier_ratio = c.seed % 4 == 0 ? 1.1 : 0;
    in.spec.owner = static_cast<OwnerKind>(c.seed / 2 % 3);
    ASSERT_TRUE(same_sets(select(*backend, dtype(), in), select(*reference, DType::kF32, in)));
  }
}

}  // namespace
}  // namespace sluice::impl::test
