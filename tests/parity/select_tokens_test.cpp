// What selection promises for every rule: owners, exempt tokens, causality, passes and several
// taus. docs/algorithm.md, sections 1 and 2.

#include <array>

#include "parity/select_cases.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

const std::vector<double> kTaus = {0.3, 0.5, 0.8};

std::vector<SelectCase> cases(std::initializer_list<int64_t> lengths) {
  std::vector<SelectCase> all;
  uint32_t seed = 500;
  for (const RowKind kind : kRowKinds)
    for (const int64_t n_tokens : lengths)
      for (const int64_t d_model : {3, 37}) {
        ++seed;
        all.push_back({kind, n_tokens, d_model, kTaus[seed % kTaus.size()], seed});
      }
  return all;
}

std::string trace(const SelectCase& c, SelectRule rule) {
  return testing::PrintToString(c) + ", rule " + std::to_string(static_cast<int>(rule));
}

// The first of the largest, over representatives that are not exempt; -1 where there is none.
int64_t nearest_representative(const Gram& gram, const TokenSet& set, int64_t t, OwnerKind kind) {
  int64_t best = -1;
  double largest = -2;
  for (int64_t s = 0; s < (kind == OwnerKind::kEarlier ? t : set.n_tokens()); ++s) {
    if (set.status[static_cast<size_t>(s)] != TokenStatus::kRepresentative) continue;
    const double cosine = kind == OwnerKind::kPaper ? std::abs(gram(s, t)) : gram(s, t);
    if (cosine > largest) {
      largest = cosine;
      best = s;
    }
  }
  return best;
}

void expect_owner(const Gram& gram, const TokenSet& set, int64_t t, OwnerKind kind) {
  const auto at = static_cast<size_t>(t);
  if (set.in_set(t)) {
    ASSERT_EQ(set.owner[at], t);
    ASSERT_EQ(set.cosine[at], 1.0f);
    return;
  }
  const int64_t owner = nearest_representative(gram, set, t, kind);
  const double cosine = owner < 0 ? -1 : gram(owner, t);
  ASSERT_EQ(set.owner[at], owner < 0 ? t : owner) << "token " << t;
  ASSERT_NEAR(set.cosine[at], cosine, 0x1p-24) << "token " << t;
  const bool alone = owner < 0 || (kind != OwnerKind::kPaper && cosine < threshold_of(set.tau));
  ASSERT_EQ(set.status[at], alone ? TokenStatus::kUncovered : TokenStatus::kRedundant)
      << "token " << t << ", cosine " << cosine;
}

// Tokens that stand for themselves are numbered by position, the others have their owner's number.
void expect_clusters(const TokenSet& set) {
  int64_t n = 0;
  for (size_t t = 0; t < set.status.size(); ++t)
    if (set.status[t] != TokenStatus::kRedundant) {
      ASSERT_EQ(set.cluster[t], n++) << "token " << t;
    }
  ASSERT_EQ(set.n_clusters, n);
  for (size_t t = 0; t < set.status.size(); ++t)
    if (set.status[t] == TokenStatus::kRedundant) {
      ASSERT_EQ(set.cluster[t], set.cluster[static_cast<size_t>(set.owner[t])]) << "token " << t;
    }
}

TEST_P(EveryImplementation, OwnersAreTheNearestRepresentatives) {
  const std::array kinds = {OwnerKind::kEarlier, OwnerKind::kAnywhere, OwnerKind::kPaper};
  for (const auto& [c, rule, kind] :
       thinned(combinations(cases({1, 2, 9, 40}), kAllRules, kinds), 61)) {
    SCOPED_TRACE(trace(c, rule) + ", owner kind " + std::to_string(static_cast<int>(kind)));
    SelectInputs in = select_inputs(c, dtype(), rule, kTaus);
    in.spec.owner = kind;
    in.spec.sinks = c.seed % 3;
    const Gram gram(in.rows, c.n_tokens, c.d_model);
    for (const TokenSet& set : select(*backend, dtype(), in)) {
      for (int64_t t = 0; t < c.n_tokens; ++t) expect_owner(gram, set, t, kind);
      expect_clusters(set);
    }
    if (HasFailure()) return;
  }
}

TEST_P(EveryImplementation, EqualCosinesGoToTheFirstRepresentative) {
  // Tokens 0 and 1 are at right angles; 2 and 3 lie halfway between them.
  SelectInputs in =
      select_inputs({.n_tokens = 4, .d_model = 2}, dtype(), SelectRule::kGreedy, {0.6});
  in.rows = {2, 0, 0, 1, 1, 1, 3, 3};
  EXPECT_EQ(select(*backend, dtype(), in)[0].owner, (std::vector<int32_t>{0, 1, 0, 0}));
}

TEST_P(EveryImplementation, TauZeroKeepsEveryToken) {
  for (const auto& [c, rule] : thinned(combinations(cases({1, 30}), kAllRules), 13)) {
    SCOPED_TRACE(trace(c, rule));
    SelectInputs in = select_inputs(c, dtype(), rule, {0});
    in.spec.sinks = 2;
    const TokenSet set = select(*backend, dtype(), in)[0];
    ASSERT_EQ(set.n_clusters, c.n_tokens);
    for (int64_t t = 0; t < c.n_tokens; ++t) {
      const auto at = static_cast<size_t>(t);
      ASSERT_EQ(set.status[at], t < 2 ? TokenStatus::kExempt : TokenStatus::kRepresentative);
      ASSERT_EQ(set.owner[at], t);
      ASSERT_EQ(set.cluster[at], t);
    }
  }
}

// Infinities and NaNs come from damaged weights; they must not decide about others.
TEST_P(EveryImplementation, RowsWithoutAFiniteNormCountAsZeros) {
  const SelectCase c{RowKind::kClusters, 60, 37, 0.5, 4};
  for (const SelectRule rule : kAllRules) {
    SelectInputs zeroed = select_inputs(c, dtype(), rule, {c.tau});
    SelectInputs broken = zeroed;
    for (const int64_t row : {3, 17, 40})
      for (int64_t i = 0; i < c.d_model; ++i)
        zeroed.rows[static_cast<size_t>(row * c.d_model + i)] = 0;
    broken.rows[static_cast<size_t>(3 * c.d_model + 5)] = INFINITY;
    broken.rows[static_cast<size_t>(17 * c.d_model)] = NAN;
    broken.rows[static_cast<size_t>(40 * c.d_model + 36)] = -INFINITY;
    EXPECT_TRUE(same_sets(select(*backend, dtype(), broken), select(*backend, dtype(), zeroed)));
  }
}

// Every token is compared at most with every representative, and with those of its own block of
// rows; two sets at most double that.
TEST_P(EveryBackend, GreedyMultipliesNoMoreThanTokensTimesRepresentatives) {
  const SelectCase c{RowKind::kClusters, 700, 64, 0.5, 2};
  const SelectInputs in = select_inputs(c, dtype(), SelectRule::kGreedy, {c.tau});
  const DeviceTensor rows(*backend, dtype(), {c.n_tokens, c.d_model}, in.rows);
  const auto selector = backend->make_selector(in.spec);
  selector->extend({.rows = rows.view(), .residual = rows.view(), .inherited = {}});
  constexpr int64_t kBlockRows = 512;  // the CPU's largest
  EXPECT_GE(selector->products(), c.n_tokens - selector->sets()[0].n_clusters);
  EXPECT_LE(selector->products(), c.n_tokens * (selector->sets()[0].n_clusters + kBlockRows));
}

TEST_P(EveryImplementation, CosinesAreLeftOutWhereNobodyAsked) {
  SelectInputs in =
      select_inputs({.n_tokens = 9, .d_model = 3}, dtype(), SelectRule::kGreedy, {0.5});
  const auto with = select(*backend, dtype(), in);
  in.spec.want_cosines = false;
  auto without = select(*backend, dtype(), in);
  EXPECT_TRUE(without[0].cosine.empty());
  without[0].cosine = with[0].cosine;
  EXPECT_TRUE(same_sets(without, with));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// Rows of one number: their norms are exact, and some are exactly at the limit.
TEST_P(EveryImplementation, OutliersAreTokensAboveEightMedians) {
  constexpr int64_t kTokens = 600;
  for (const int64_t sinks : {0, 4}) {
    SelectInputs in = select_inputs({.n_tokens = kTokens, .d_model = 1, .seed = 3}, dtype(),
                                    SelectRule::kGreedy, {0.5});
    in.spec.sinks = sinks;
    in.spec.outlier_ratio = 8;
    std::mt19937 random(11);
    const float sizes[] = {1, 1, 1, 2, -1, 4, 0.5f, 8, -8, 16, 8.5f, 0};
    for (int64_t t = 0; t < kTokens; ++t)
      // The later norms are larger, and the median must not follow them.
      in.residual.push_back(sizes[random() % 12] * (t < 300 ? 1.0f : 4.0f));
    const TokenSet set = select(*backend, dtype(), in, {7, 260, 261})[0];
    std::vector<double> norms;  // of tokens sinks ... min(t, sinks + 255)
    int64_t n_outliers = 0;
    for (int64_t t = 0; t < kTokens; ++t) {
      const double norm = std::abs(in.residual[static_cast<size_t>(t)]);
      if (t >= sinks && t < sinks + 256) norms.push_back(norm);
      const bool outlier = t >= sinks && norm > 8 * median(norms);
      n_outliers += outlier ? 1 : 0;
      ASSERT_EQ(set.status[static_cast<size_t>(t)] == TokenStatus::kExempt, t < sinks || outlier)
          << "token " << t << ", norm " << norm;
    }
    EXPECT_GT(n_outliers, 50);
  }
}

// Sets with exempt tokens are the sets of the sequence without them.
TEST_P(EveryImplementation, ExemptTokensTouchNobody) {
  for (const auto& [c, rule] : thinned(combinations(cases({9, 40}), kAllRules), 29)) {
    SCOPED_TRACE(trace(c, rule));
    SelectInputs in = select_inputs(c, dtype(), rule, kTaus);
    in.spec.sinks = 2;
    in.spec.outlier_ratio = 2;
    in.spec.owner = rule == SelectRule::kCascadePaper ? OwnerKind::kPaper : OwnerKind::kEarlier;
    in.residual.assign(in.rows.size(), 1.0f);
    for (int64_t t = 8; t < c.n_tokens; t += 5)
      in.residual[static_cast<size_t>(t * c.d_model)] = 1000.0f;
    const auto sets = select(*backend, dtype(), in);

    SelectInputs rest = in;
    rest.spec.sinks = 0;
    rest.spec.outlier_ratio = 0;
    rest.residual.clear();
    rest.rows.clear();
    for (auto& flags : rest.inherited) flags.clear();
    std::vector<int64_t> position;
    for (int64_t t = 0; t < c.n_tokens; ++t) {
      const bool exempt = t < 2 || (t >= 8 && t % 5 == 3);
      for (const TokenSet& set : sets)
        ASSERT_EQ(set.status[static_cast<size_t>(t)] == TokenStatus::kExempt, exempt) << t;
      if (exempt) continue;
      position.push_back(t);
      rest.rows.insert(rest.rows.end(), in.rows.begin() + t * c.d_model,
                       in.rows.begin() + (t + 1) * c.d_model);
      for (size_t i = 0; i < rest.inherited.size(); ++i)
        rest.inherited[i].push_back(in.inherited[i][static_cast<size_t>(t)]);
    }
    rest.n_tokens = static_cast<int64_t>(position.size());
    const auto expected = select(*backend, dtype(), rest);
    for (size_t i = 0; i < sets.size(); ++i)
      for (size_t t = 0; t < position.size(); ++t) {
        const auto at = static_cast<size_t>(position[t]);
        ASSERT_EQ(sets[i].status[at], expected[i].status[t]) << at;
        ASSERT_EQ(sets[i].owner[at], position[static_cast<size_t>(expected[i].owner[t])]) << at;
      }
  }
}

SelectInputs with_other_future(const SelectInputs& in, int64_t first_changed, DType dtype) {
  SelectInputs changed = in;
  const int64_t d = in.spec.d_model;
  const auto other = random_values(in.n_tokens * d, 4242, dtype, 64);
  std::copy(other.begin() + first_changed * d, other.end(),
            changed.rows.begin() + first_changed * d);
  for (auto& flags : changed.inherited)
    for (auto t = static_cast<size_t>(first_changed); t < flags.size(); ++t)
      flags[t] = flags[t] == 0 ? 1 : 0;
  return changed;
}

TEST_P(EveryImplementation, TheFutureDoesNotTouchPastDecisions) {
  for (const auto& [c, rule] : thinned(combinations(cases({9, 40, 150}), kCausalRules), 88)) {
    SCOPED_TRACE(trace(c, rule));
    SelectInputs in = select_inputs(c, dtype(), rule, kTaus);
    in.spec.sinks = 2;
    in.spec.outlier_ratio = 1.5;
    const auto before = select(*backend, dtype(), in);
    for (const int64_t last : {int64_t{0}, c.n_tokens / 2, c.n_tokens - 2}) {
      const auto after = select(*backend, dtype(), with_other_future(in, last + 1, dtype()));
      for (size_t i = 0; i < kTaus.size(); ++i)
        ASSERT_TRUE(same_start(after[i], before[i], last + 1));
    }
  }
}

TEST_P(EveryImplementation, CascadePaperLooksAhead) {
  SelectInputs in =
      select_inputs({.n_tokens = 2, .d_model = 2}, dtype(), SelectRule::kCascadePaper, {0.3});
  in.inherited = {{0, 1}};
  in.rows = {1, 0, 1, 0};
  EXPECT_FALSE(select(*backend, dtype(), in)[0].in_set(0));
  in.rows = {1, 0, 0, 1};
  EXPECT_TRUE(select(*backend, dtype(), in)[0].in_set(0));
}

TEST_P(EveryImplementation, AnyCutGivesTheSameSets) {
  std::mt19937 random(5);
  for (const auto& [c, rule] : thinned(combinations(cases({2, 40, 150}), kCausalRules), 88)) {
    SCOPED_TRACE(trace(c, rule));
    SelectInputs in = select_inputs(c, dtype(), rule, kTaus);
    in.spec.sinks = 3;
    in.spec.outlier_ratio = 1.5;
    std::vector<int64_t> cuts;
    for (int64_t t = 1; t < c.n_tokens; ++t)
      if (random() % (c.seed % 2 == 0 ? 2 : 20) == 0) cuts.push_back(t);
    ASSERT_TRUE(
        same_sets(select(*backend, dtype(), in, thinned(cuts, 40)), select(*backend, dtype(), in)));
  }
}

TEST_P(EveryImplementation, SeveralTausAreSeveralSelectors) {
  for (const auto& [c, rule] : thinned(combinations(cases({40, 150}), kAllRules), 94)) {
    SCOPED_TRACE(trace(c, rule));
    // Not in order, and with one that keeps everything.
    const SelectInputs in = select_inputs(c, dtype(), rule, {0.5, 0, 0.8, 0.3});
    const auto together = select(*backend, dtype(), in);
    for (size_t i = 0; i < together.size(); ++i) {
      SelectInputs one = in;
      one.spec.taus = {in.spec.taus[i]};
      if (inherits(rule)) one.inherited = {in.inherited[i]};
      ASSERT_TRUE(same_sets({together[i]}, select(*backend, dtype(), one)));
    }
  }
}

TEST_P(EveryImplementation, RulesThatLookAheadTakeASequenceWhole) {
  for (const OwnerKind owner : {OwnerKind::kEarlier, OwnerKind::kAnywhere, OwnerKind::kPaper}) {
    const bool paper = owner == OwnerKind::kEarlier;
    SelectInputs in = select_inputs({.n_tokens = 4, .d_model = 2}, dtype(),
                                    paper ? SelectRule::kCascadePaper : SelectRule::kGreedy, {0.3});
    in.spec.owner = owner;
    EXPECT_THROW(select(*backend, dtype(), in, {2}), InternalError);
  }
}

TEST_P(EveryImplementation, ResetForgetsTheSequence) {
  SelectInputs in = select_inputs({.kind = RowKind::kClusters, .n_tokens = 40, .d_model = 37},
                                  dtype(), SelectRule::kCascadeCover, kTaus);
  in.spec.outlier_ratio = 1.1;
  const auto selector = backend->make_selector(in.spec);
  extend(*selector, *backend, dtype(), with_other_future(in, 0, dtype()), 0, in.n_tokens);
  EXPECT_GT(selector->bytes(), 0);
  EXPECT_GT(selector->products(), 0);
  selector->reset();
  EXPECT_EQ(selector->bytes(), 0);
  extend(*selector, *backend, dtype(), in, 0, in.n_tokens);
  EXPECT_TRUE(same_sets(selector->sets(), select(*backend, dtype(), in)));
}

}  // namespace
}  // namespace sluice::impl::test
