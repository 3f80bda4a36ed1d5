#include "select/inherit.h"

#include <gtest/gtest.h>

#include "unit/select/small_sets.h"

namespace sluice::impl {
namespace {

using test::small_set;

TEST(NearestSet, IsTheOneOfNearestTauAndOfEqualsTheSmaller) {
  const std::vector<double> sets = {0.75, 0.25, 0.5};
  EXPECT_EQ(nearest_set(sets, 0.0), 1u);
  EXPECT_EQ(nearest_set(sets, 0.5), 2u);
  EXPECT_EQ(nearest_set(sets, 0.6), 2u);
  EXPECT_EQ(nearest_set(sets, 0.9), 0u);
  EXPECT_EQ(nearest_set(sets, 0.375), 1u);  // halfway between 0.25 and 0.5
  EXPECT_EQ(nearest_set(sets, 0.625), 2u);
}

TEST(IndexOfTau, IsExactOrABrokenPromise) {
  const std::vector<double> taus = {0.25, 0.5};
  EXPECT_EQ(index_of_tau(taus, 0.5), 1u);
  EXPECT_THROW(index_of_tau(taus, 0.4), InternalError);
}

TEST(Membership, FlagsRepresentativesAndExemptTokensOfThePass) {
  const TokenSet set = small_set("xr.ur.");
  EXPECT_EQ(membership(set, 0, 6), (std::vector<uint8_t>{1, 1, 0, 0, 1, 0}));
  EXPECT_EQ(membership(set, 3, 2), (std::vector<uint8_t>{0, 1}));
  EXPECT_TRUE(membership(set, 6, 0).empty());
  EXPECT_THROW(membership(set, 4, 3), InternalError);
}

// Sets of a layer before.
class Above final : public Selector {
 public:
  explicit Above(std::vector<TokenSet> sets) : Selector({}) {
    for (const TokenSet& set : sets) spec_.taus.push_back(set.tau);
    sets_ = std::move(sets);
  }
  void extend(const SelectArgs&) override {}
  void reset() override {}
  int64_t bytes() const override { return 0; }
};

// Remembers what it was given, and decides nothing.
class Recorder final : public Selector {
 public:
  explicit Recorder(SelectorSpec spec) : Selector(std::move(spec)) {}
  void extend(const SelectArgs& args) override {
    inherited.clear();
    for (const Inherited& set : args.inherited)
      inherited.push_back(set.flags(n_decided(), args.rows.rows()));
    sets_.resize(spec_.taus.size());
    for (TokenSet& set : sets_)
      set.status.resize(set.status.size() + static_cast<size_t>(args.rows.rows()));
  }
  void reset() override {}
  int64_t bytes() const override { return 0; }
  std::vector<std::vector<uint8_t>> inherited;
};

TEST(ExtendFrom, HandsEachTauTheFlagsOfItsNearestSetPassByPass) {
  Recorder selector({.rule = SelectRule::kCascadeCover, .taus = {0.5, 0.2}, .d_model = 1});
  const std::vector<float> values(4);
  const Above three_above({small_set("rr.", 0.3), small_set("r..", 0.6)});
  const ConstTensor three(values.data(), DType::kF32, {3, 1});
  extend_from(selector, &three_above, {three, three});
  EXPECT_EQ(selector.inherited, (std::vector<std::vector<uint8_t>>{{1, 0, 0}, {1, 1, 0}}));
  const Above four_above({small_set("rr..", 0.3), small_set("r..r", 0.6)});
  const ConstTensor one(values.data(), DType::kF32, {1, 1});
  extend_from(selector, &four_above, {one, one});
  EXPECT_EQ(selector.inherited, (std::vector<std::vector<uint8_t>>{{1}, {0}}));
}

TEST(ExtendFrom, HandsNothingToRulesThatDoNotInherit) {
  for (const SelectRule rule : {SelectRule::kIndependent, SelectRule::kGreedy}) {
    Recorder selector({.rule = rule, .taus = {0.5}, .d_model = 1});
    const std::vector<float> values(2);
    const ConstTensor rows(values.data(), DType::kF32, {2, 1});
    extend_from(selector, nullptr, {rows, rows});
    EXPECT_TRUE(selector.inherited.empty());
    EXPECT_EQ(selector.sets()[0].n_tokens(), 2);
  }
}

}  // namespace
}  // namespace sluice::impl
