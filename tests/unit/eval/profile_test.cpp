// Counters over sets made by hand, and figures over layers and windows.

#include "eval/analyze/profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "eval/analyze/analyze_results.h"
#include "eval/analyze/profile_sets.h"

namespace sluice::impl::test {
namespace {

const std::vector<SelectRule> kAllCascades = {SelectRule::kCascadePaper, SelectRule::kCascadeCausal,
                                              SelectRule::kCascadeCover};
constexpr size_t kPaper = kCascadeSet, kCausal = kCascadeSet + 1, kCover = kCascadeSet + 2;
constexpr size_t kRandom = kCascadeSet + 3, kUnvalidated = kCascadeSet + 4;

// Rows of two elements.
using Rows = std::vector<std::array<float, 2>>;
constexpr std::array<float, 2> kE1 = {1, 0}, kE2 = {0, 1};

ConstTensor view(const Rows& rows) {
  return ConstTensor(rows.data(), DType::kF32, {static_cast<int64_t>(rows.size()), 2});
}

class Layers {
 public:
  explicit Layers(ProfileSetsSpec spec) : sets_(*backend_, std::move(spec)) {
    sets_.begin_window(0);
  }
  // The figures of the next layer.
  std::vector<SetFigures> add(const Rows& rows) {
    std::vector<SetFigures> figures;
    last_ = sets_.add_layer(view(rows), view(rows), figures);
    return figures;
  }
  std::vector<int> members(size_t kind) const {
    std::vector<int> tokens;
    for (int64_t t = 0; t < last_[kind].n_tokens(); ++t)
      if (last_[kind].in_set(t)) tokens.push_back(static_cast<int>(t));
    return tokens;
  }

 private:
  std::unique_ptr<Backend> backend_ = make_reference_backend(DType::kF32);
  ProfileSets sets_;
  std::vector<TokenSet> last_;
};

ProfileSetsSpec spec_of(std::vector<SelectRule> rules = kAllCascades) {
  return {.rules = std::move(rules), .tau = 0.3, .row_width = 2};
}

// The counterexample to the paper's Proposition 4, docs/algorithm.md section 2.
TEST(ProfileSets, CascadePaperMissesATrueRepresentative) {
  Layers layers(spec_of());
  layers.add({kE1, kE1, kE2});
  const auto figures = layers.add({kE1, kE2, kE2});
  EXPECT_EQ(layers.members(kIndependentSet), (std::vector<int>{0, 1}));
  EXPECT_EQ(layers.members(kPaper), (std::vector<int>{0, 2}));
  EXPECT_EQ(layers.members(kCausal), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(layers.members(kCover), (std::vector<int>{0, 1, 2}));

  const SetFigures& paper = figures[kPaper];
  EXPECT_EQ(paper.n_reps.mean(), 2);
  EXPECT_EQ(paper.n_inherited.mean(), 2);
  EXPECT_EQ(paper.additions.mean(), 0);
  EXPECT_EQ(paper.removals.mean(), 0);
  EXPECT_EQ(paper.turnover.mean(), 0);
  EXPECT_EQ(paper.missed.mean(), 1);
  EXPECT_EQ(paper.recall.mean(), 0.5);
  EXPECT_EQ(paper.precision.mean(), 0.5);
  EXPECT_EQ(paper.jaccard.mean(), 1.0 / 3);
  // Token 1 has only token 0 before it, at cosine 0.
  EXPECT_EQ(paper.uncovered.mean(), 1.0 / 3);
  EXPECT_EQ(paper.owner_cosine_min.mean(), 0);
  EXPECT_EQ(paper.products_paper.mean(), 3 * 2);

  const SetFigures& causal = figures[kCausal];
  EXPECT_EQ(causal.missed.mean(), 0);
  EXPECT_EQ(causal.recall.mean(), 1);
  EXPECT_EQ(causal.precision.mean(), 2.0 / 3);
  EXPECT_EQ(causal.additions.mean(), 1);
  EXPECT_EQ(causal.turnover.mean(), 0.5);

  const SetFigures& independent = figures[kIndependentSet];
  EXPECT_EQ(independent.jaccard_prev.mean(), 1.0 / 3);  // {0, 2} and {0, 1}
  EXPECT_EQ(independent.intersection_prev.mean(), 1);
  EXPECT_EQ(independent.products_paper.mean(), 9);
}

TEST(ProfileSets, TheFirstLayerInheritsNothing) {
  Layers layers(spec_of());
  const auto figures = layers.add({kE1, kE1, kE2});
  for (const SetFigures& set : figures) {
    EXPECT_EQ(set.turnover.count(), 0);
    EXPECT_EQ(set.jaccard_prev.count(), 0);
    EXPECT_EQ(set.n_reps.mean(), 2);
  }
  EXPECT_EQ(figures[kPaper].products_paper.mean(), 9);  // the whole Gram matrix
  EXPECT_EQ(figures[kCover].products_paper.mean(), 6);  // greedy: three rows, two representatives
}

TEST(ProfileSets, AWindowBeginsAnew) {
  const auto backend = make_reference_backend(DType::kF32);
  ProfileSets sets(*backend, spec_of());
  const Rows rows = {kE1, kE1, kE2};
  std::vector<SetFigures> figures;
  for (int window = 0; window < 2; ++window) {
    sets.begin_window(0);
    sets.add_layer(view(rows), view(rows), figures);
  }
  EXPECT_EQ(figures[kPaper].n_reps.count(), 2);
  EXPECT_EQ(figures[kPaper].turnover.count(), 0);
}

TEST(ProfileSets, UnvalidatedKeepsTheFirstLayersSet) {
  Layers layers(spec_of());
  layers.add({kE1, kE1, kE2});
  const auto figures = layers.add({kE1, kE2, kE1});
  EXPECT_EQ(layers.members(kUnvalidated), (std::vector<int>{0, 2}));
  EXPECT_EQ(figures[kUnvalidated].turnover.mean(), 0);
  EXPECT_EQ(figures[kUnvalidated].missed.mean(), 1);
  EXPECT_EQ(figures[kUnvalidated].products_paper.mean(), 0);
}

TEST(ProfileSets, TheRandomSetHasTheCascadesSizeAndTheFirstToken) {
  Rows rows;
  for (int i = 0; i < 40; ++i)
    rows.push_back(
        {std::cos(2.4f * static_cast<float>(i)), std::sin(2.4f * static_cast<float>(i))});
  ProfileSetsSpec spec = spec_of();
  spec.sinks = 2;
  std::vector<std::vector<int>> drawn;
  for (const uint64_t seed : {1, 1, 2}) {
    spec.seed = seed;
    Layers layers(spec);
    const auto figures = layers.add(rows);
    const auto members = layers.members(kRandom);
    EXPECT_EQ(figures[kRandom].n_reps.mean(), figures[kPaper].n_reps.mean());
    // Two sinks, and the first token that can be chosen.
    EXPECT_EQ((std::vector<int>{members[0], members[1], members[2]}), (std::vector<int>{0, 1, 2}));
    drawn.push_back(members);
  }
  EXPECT_EQ(drawn[0], drawn[1]);
  EXPECT_NE(drawn[0], drawn[2]);
}

TEST(ProfileSets, TauZeroKeepsEveryToken) {
  ProfileSetsSpec spec = spec_of();
  spec.tau = 0;
  Layers layers(spec);
  for (const SetFigures& set : layers.add({kE1, kE1, kE1})) {
    EXPECT_EQ(set.n_reps.mean(), 3);
    EXPECT_EQ(set.products_paper.mean(), 0);  // nothing is compared
  }
}

TEST(ProfileSets, TheFirstCascadeLeadsAndWithoutOneTheFirstRule) {
  using Rules = std::vector<SelectRule>;
  const auto leading = [](const Rules& rules) { return set_kinds(rules)[leading_set(rules)].name; };
  EXPECT_EQ(leading(kAllCascades), "cascade-paper");
  EXPECT_EQ(leading({SelectRule::kGreedy, SelectRule::kCascadeCover}), "cascade-cover");
  EXPECT_EQ(leading({SelectRule::kGreedy, SelectRule::kIndependent}), "greedy");
  EXPECT_EQ(leading({SelectRule::kIndependent}), "independent");
  EXPECT_THROW(leading_set({}), InternalError);
}

TEST(ProfileSets, WithoutACascadeTheControlsFollowTheFirstRule) {
  Layers layers(spec_of({SelectRule::kIndependent}));
  ASSERT_EQ(layers.add({kE1, kE1, kE2}).size(), 4u);  // independent, greedy, two controls
  layers.add({kE1, kE2, kE2});
  EXPECT_EQ(layers.members(kIndependentSet), (std::vector<int>{0, 1}));
  EXPECT_EQ(layers.members(3), (std::vector<int>{0, 2}));  // unvalidated: the first layer's
}

// ---- profiles ----

// Two layers of the counterexample in each of `n` windows.
Profile counterexample_profile(int n_windows) {
  Profile profile;
  profile.tau = 0.3;
  profile.n_tokens = 3;
  profile.first_deep_layer = 1;
  for (int i = 0; i < n_windows; ++i) {
    Layers layers(spec_of());
    std::vector<LayerFigures> window(2);
    window[0].sets = layers.add({kE1, kE1, kE2});
    window[1].sets = layers.add(i == 0 ? Rows{kE1, kE2, kE2} : Rows{kE1, kE1, kE2});
    profile.add_window(window);
  }
  return profile;
}

TEST(Profile, SummariesFollowFromTheLayers) {
  const Profile profile = counterexample_profile(1);
  const SetSummary& paper = profile.summaries[kPaper];
  EXPECT_EQ(paper.n_reps.mean(), 2);
  EXPECT_EQ(paper.n_inherited.mean(), 2);
  EXPECT_EQ(paper.missed.mean(), 0.5);
  EXPECT_EQ(paper.missed_max.mean(), 1);
  EXPECT_EQ(paper.products_paper.mean(), 9 + 6);
  EXPECT_DOUBLE_EQ(paper.savings_paper.mean(), 1 - 15.0 / 18);
  EXPECT_EQ(paper.rep_pairs.mean(), 4 + 4);
  EXPECT_EQ(paper.deep_ratio.mean(), 1);
  EXPECT_EQ(profile.summaries[kCausal].deep_ratio.mean(), 1.5);
  EXPECT_EQ(profile.summaries[kCausal].deep_turnover_max.mean(), 0.5);
  EXPECT_EQ(profile.summaries[kIndependentSet].jaccard_prev.mean(), 1.0 / 3);
  EXPECT_EQ(profile.summaries[kIndependentSet].savings_computed.mean(), 0);
}

TEST(Profile, WindowsSpreadTheFigures) {
  const Profile profile = counterexample_profile(2);
  EXPECT_EQ(profile.n_windows, 2);
  const RunningMean& missed = profile.layers[1].sets[kPaper].missed;  // 1 and 0
  EXPECT_EQ(missed.mean(), 0.5);
  EXPECT_DOUBLE_EQ(missed.standard_deviation(), std::sqrt(0.5));
}

TEST(Profile, JsonHasEveryFigureWithItsDeviation) {
  const nlohmann::json run = profile_json(counterexample_profile(2), kAllCascades);
  EXPECT_EQ(run.at("tau"), 0.3);
  EXPECT_EQ(run.at("n_tokens"), 3);
  EXPECT_EQ(run.at("space"), "residual");
  // One row for each layer and rule.
  std::vector<std::string> rules;
  for (const nlohmann::json& row : run.at("rows")) {
    if (row.at("layer") == 1) rules.push_back(row.at("rule"));
    EXPECT_EQ(row.at("tau"), 0.3);
    for (const SetFigureName& entry : kSetFigureNames) {
      EXPECT_TRUE(row.contains(entry.name)) << entry.name;
      EXPECT_TRUE(row.contains(std::string(entry.name) + "_sd")) << entry.name;
    }
  }
  EXPECT_EQ(rules,
            (std::vector<std::string>{"independent", "greedy", "cascade-paper", "cascade-causal",
                                      "cascade-cover", "random", "unvalidated"}));
  EXPECT_EQ(run.at("rows").size(), 2 * rules.size());
  EXPECT_EQ(run.at("summary").at("rule"), "cascade-paper");
  EXPECT_TRUE(run.at("rows").at(kPaper).at("turnover").is_null());
  EXPECT_EQ(run.at("rows").at(rules.size() + kPaper).at("missed_vs_independent"), 0.5);
  for (const char* key : {"mean_n_reps_independent", "mean_n_reps_cascade", "mean_jaccard_prev",
                          "gram_savings_paper", "gram_savings_computed"})
    EXPECT_TRUE(run.at("summary").at(key).is_number()) << key;
}

TEST(Profile, JsonNamesTheRuleThatStandsForTheCascade) {
  Layers layers(spec_of({SelectRule::kGreedy}));
  Profile profile;
  std::vector<LayerFigures> window(1);
  window[0].sets = layers.add({kE1, kE1, kE2});
  profile.add_window(window);
  const nlohmann::json run = profile_json(profile, {SelectRule::kGreedy});
  EXPECT_EQ(run.at("rows").at(1).at("rule"), "greedy");
  EXPECT_EQ(run.at("summary").at("rule"), "greedy");
}

}  // namespace
}  // namespace sluice::impl::test
