#include "select/counters.h"

#include <gtest/gtest.h>

#include "unit/select/small_sets.h"

namespace sluice::impl {
namespace {

using test::small_set;

TEST(Counters, ExemptTokensAreInTheSetAndUncoveredOnesAreNot) {
  EXPECT_EQ(n_reps(small_set("xr.u.r")), 3);
  EXPECT_EQ(n_reps(small_set("")), 0);
}

TEST(Counters, JaccardIsCommonOverAll) {
  const TokenSet a = small_set("xr.r.."), b = small_set("xr..r.");
  EXPECT_EQ(intersection(a, b), 2);
  EXPECT_EQ(jaccard(a, b), 0.5);
  EXPECT_EQ(jaccard(a, a), 1.0);
  EXPECT_EQ(jaccard(small_set("r."), small_set("ur")), 0.0);
  EXPECT_EQ(jaccard(small_set(""), small_set("")), 1.0);
}

TEST(Counters, TurnoverIsAdditionsAndRemovalsOfTheSetBefore) {
  const Turnover change = turnover(small_set("rrr.r."), small_set("r.rr.r"));
  EXPECT_EQ(change.n_inherited, 4);
  EXPECT_EQ(change.additions, 2);
  EXPECT_EQ(change.removals, 2);
  EXPECT_EQ(change.rate(), 1.0);
  EXPECT_EQ(turnover(small_set("r.r"), small_set("r.r")).rate(), 0.0);
}

TEST(Counters, UncoveredShareLeavesExemptTokensOut) {
  EXPECT_EQ(uncovered_share(small_set("xxr.u.")), 0.25);
  EXPECT_EQ(uncovered_share(small_set("xx")), 0.0);
}

TEST(Counters, OwnerCosineIsOverTokensOutsideTheSet) {
  TokenSet set = small_set("xr.u");
  EXPECT_THROW(owner_cosine(set), InternalError);
  set.cosine = {1, 1, 0.75f, 0.25f};
  EXPECT_EQ(owner_cosine(set).least, 0.25);
  EXPECT_EQ(owner_cosine(set).mean, 0.5);
  set = small_set("xr");
  set.cosine = {1, 1};
  EXPECT_EQ(owner_cosine(set).least, 1.0);
  EXPECT_EQ(owner_cosine(set).mean, 1.0);
}

TEST(Counters, ProductsByThePaperAreOfTheRuleThatRan) {
  const TokenSet set = small_set("rrr..."), inherited = small_set("r..r..");
  const auto products = [&](SelectRule rule) {
    return products_by_the_paper(rule, set, &inherited);
  };
  EXPECT_EQ(products(SelectRule::kIndependent), 6 * 6);
  EXPECT_EQ(products(SelectRule::kGreedy), 6 * 3);
  for (const SelectRule cascade :
       {SelectRule::kCascadePaper, SelectRule::kCascadeCausal, SelectRule::kCascadeCover}) {
    EXPECT_EQ(products(cascade), 6 * 2);
    EXPECT_THROW(products_by_the_paper(cascade, set, nullptr), InternalError);
  }
}

TEST(Counters, ProductsByThePaperAreNoneWhereNothingIsValidated) {
  const TokenSet set = small_set("rrr..."), all = small_set("rrrrrr", 0);
  EXPECT_EQ(products_by_the_paper(SelectRule::kFixed, set, &set), 0);
  for (const SelectRule rule :
       {SelectRule::kIndependent, SelectRule::kGreedy, SelectRule::kCascadeCover})
    EXPECT_EQ(products_by_the_paper(rule, all, &all), 0);
}

// Window 2, block 2: F(0..3) = 0, F(4) = F(5) = 2, F(6) = 4.
TEST(Counters, KeysReadAreFarKeysAndTheWindow) {
  const TokenSet set = small_set("xr.ru.r");
  const auto causal = [&](HeadKind kind, int64_t first, int64_t n) {
    return keys_read(set, kind, {first, n, 2, 2, true});
  };
  EXPECT_EQ(causal(HeadKind::kDense, 0, 7), 1 + 2 + 3 + 4 + 5 + 6 + 7);
  // Tokens 0 and 1 before F = 2; 0, 1 and 3 before F = 4.
  EXPECT_EQ(causal(HeadKind::kClusters, 0, 7), 1 + 2 + 3 + 4 + (2 + 3) + (2 + 4) + (3 + 3));
  EXPECT_EQ(causal(HeadKind::kWindow, 0, 7), 1 + 2 + 3 + 4 + (1 + 3) + (1 + 4) + (1 + 3));
  // A pass that goes on reads what the whole reads for its tokens.
  for (const HeadKind kind : {HeadKind::kClusters, HeadKind::kWindow, HeadKind::kDense})
    EXPECT_EQ(causal(kind, 0, 5) + causal(kind, 5, 2), causal(kind, 0, 7));
}

TEST(Counters, EncodersReadAllClustersForEveryQuery) {
  const TokenSet set = small_set("xr.ru.r");
  EXPECT_EQ(keys_read(set, HeadKind::kClusters, {0, 7, 2, 2, false}), 7 * 5);
  EXPECT_EQ(keys_read(set, HeadKind::kDense, {0, 7, 2, 2, false}), 7 * 7);
}

}  // namespace
}  // namespace sluice::impl
