// Models whose layers choose their tau: exact up to the choice, and the same after it however a
// text comes. docs/algorithm.md, section 6.

#include "select/auto_tau.h"

#include "parity/compare.h"
#include "unit/model/family_models.h"

namespace sluice::impl::test {
namespace {

constexpr int64_t kTokens = 400;

const FamilyCase& family() {
  for (const FamilyCase& c : family_cases())
    if (std::string_view(c.name) == "llama_16") return c;
  SLUICE_CHECK(!"no such family");
}

class AutoTauModel : public testing::TestWithParam<ModelSetup> {
 protected:
  AttentionPlan plan() const {
    UniformAttention choice;
    choice.mode = AttentionMode::kKeys;
    choice.tau_auto = true;
    return uniform_plan(choice, model.plan_shape());
  }
  // Hidden states, n tokens at a time, and the sets of every layer at the end.
  std::vector<float> run(std::span<const int32_t> text, KvCache& cache, size_t n,
                         std::vector<TokenSet>* sets = nullptr) {
    std::vector<float> all;
    for (size_t at = 0; at < text.size(); at += n) {
      const auto part = hidden_of(model, text.subspan(at, std::min(n, text.size() - at)), cache);
      all.insert(all.end(), part.begin(), part.end());
    }
    for (int64_t layer = 0; sets != nullptr && layer < model.spec().n_layers; ++layer)
      sets->push_back(cache.selector(layer)->sets()[0]);
    return all;
  }
  // As in attention_test.cpp: round-off of some hundred additions in each of 2 layers.
  static double round_off(const std::vector<float>& values) { return 5e-6 * range_of(values); }

  Model model = load(family(), GetParam());
  const std::vector<int32_t> tokens = repeating_tokens(kTokens);
};

TEST_P(AutoTauModel, PiecesGiveWhatTheWholeGives) {
  KvCache cache = model.make_cache(1, 0, plan());
  std::vector<TokenSet> sets;
  const auto whole = run(tokens, cache, tokens.size(), &sets);
  for (const size_t n : {256, 77, 1}) {
    SCOPED_TRACE(n);
    cache.truncate(0);
    EXPECT_EQ(cache.selector(0), nullptr);
    std::vector<TokenSet> of_pieces;
    EXPECT_CLOSE(run(tokens, cache, n, &of_pieces), whole, round_off(whole));
    for (size_t layer = 0; layer < sets.size(); ++layer) {
      EXPECT_EQ(of_pieces[layer].tau, sets[layer].tau);
      EXPECT_EQ(of_pieces[layer].status, sets[layer].status);
      EXPECT_EQ(of_pieces[layer].owner, sets[layer].owner);
    }
  }
}

TEST_P(AutoTauModel, IsDenseUpToTheChoiceAndMergesAfterIt) {
  KvCache dense = model.make_cache(), chosen = model.make_cache(1, 0, plan());
  auto exact = run(tokens, dense, tokens.size()), merged = run(tokens, chosen, tokens.size());
  EXPECT_NE(chosen.selector(0), nullptr);
  const size_t first = static_cast<size_t>(kAutoTokens * model.spec().d_model);
  double most = 0;
  for (size_t i = first; i < exact.size(); ++i)
    most = std::max(most, std::abs(double{exact[i]} - merged[i]));
  EXPECT_GT(most, 10 * round_off(exact));
  exact.resize(first);
  merged.resize(first);
  EXPECT_CLOSE(merged, exact, round_off(exact));

  KvCache shorter = model.make_cache(1, 0, plan());
  exact.resize(255 * static_cast<size_t>(model.spec().d_model));
  EXPECT_CLOSE(run(std::span(tokens).first(255), shorter, 100), exact, round_off(exact));
  EXPECT_EQ(shorter.selector(0), nullptr);
}

TEST_P(AutoTauModel, TheFutureChangesNothing) {
  constexpr size_t kSame = 330;  // some of these see merged keys
  auto changed = tokens;
  for (size_t i = kSame; i < changed.size(); ++i) changed[i] = 20 + static_cast<int32_t>(i % 30);
  KvCache cache = model.make_cache(1, 0, plan());
  std::vector<TokenSet> sets, other_sets;
  auto first = run(tokens, cache, tokens.size(), &sets);
  cache.truncate(0);
  auto second = run(changed, cache, tokens.size(), &other_sets);
  EXPECT_NE(first, second);
  for (auto* out : {&first, &second})
    out->resize(kSame * static_cast<size_t>(model.spec().d_model));
  EXPECT_SAME_BITS(second, first);
  for (size_t layer = 0; layer < sets.size(); ++layer) {
    EXPECT_EQ(sets[layer].tau, other_sets[layer].tau);
    for (auto* set : {&sets[layer], &other_sets[layer]}) {
      // In `keys` the last tokens may not be decided yet.
      ASSERT_GE(set->status.size(), kSame);
      set->status.resize(kSame);
      set->owner.resize(kSame);
    }
    EXPECT_EQ(sets[layer].status, other_sets[layer].status);
    EXPECT_EQ(sets[layer].owner, other_sets[layer].owner);
  }
}

TEST_P(AutoTauModel, SequencesOfABatchGiveTheirOwn) {
  std::vector<int32_t> other;
  for (int32_t i = 0; i < kTokens; ++i) other.push_back(3 + i * 7 % 60);
  auto both = tokens;
  both.insert(both.end(), other.begin(), other.end());
  KvCache one = model.make_cache(1, 0, plan()), two = model.make_cache(2, 0, plan());
  auto alone = run(tokens, one, tokens.size());
  one.truncate(0);
  const auto other_alone = run(other, one, other.size());
  alone.insert(alone.end(), other_alone.begin(), other_alone.end());
  EXPECT_CLOSE(run(both, two, both.size()), alone, round_off(alone));
  EXPECT_NE(two.selector(0, 0)->sets()[0].status, two.selector(0, 1)->sets()[0].status);
}

TEST(AutoTauModels, BackendsChooseAlike) {
  std::vector<std::vector<TokenSet>> sets(2);
  for (size_t i = 0; i < 2; ++i) {
    const ModelSetup setup{i == 0 ? "reference" : "cpu", DType::kF32};
    Model model = load(family(), setup);
    UniformAttention choice;
    choice.mode = AttentionMode::kKeys;
    choice.tau_auto = true;
    KvCache cache = model.make_cache(1, 0, uniform_plan(choice, model.plan_shape()));
    hidden_of(model, repeating_tokens(300), cache);
    for (int64_t layer = 0; layer < model.spec().n_layers; ++layer)
      sets[i].push_back(cache.selector(layer)->sets()[0]);
  }
  for (size_t layer = 0; layer < sets[0].size(); ++layer) {
    EXPECT_EQ(sets[0][layer].tau, sets[1][layer].tau);
    EXPECT_EQ(sets[0][layer].status, sets[1][layer].status);
    EXPECT_EQ(sets[0][layer].owner, sets[1][layer].owner);
  }
}

INSTANTIATE_TEST_SUITE_P(All, AutoTauModel,
                         testing::Values(ModelSetup{"cpu", DType::kF32},
                                         ModelSetup{"reference", DType::kF32}),
                         [](const auto& test) { return std::string(test.param.backend); });

}  // namespace
}  // namespace sluice::impl::test
