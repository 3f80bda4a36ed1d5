#include "select/rules.h"

#include <gtest/gtest.h>

namespace sluice::impl {
namespace {

TEST(Rules, HaveTheNamesOfTheDocuments) {
  EXPECT_EQ(rule_name(SelectRule::kIndependent), "independent");
  EXPECT_EQ(rule_name(SelectRule::kGreedy), "greedy");
  EXPECT_EQ(rule_name(SelectRule::kCascadePaper), "cascade-paper");
  EXPECT_EQ(rule_name(SelectRule::kCascadeCausal), "cascade-causal");
  EXPECT_EQ(rule_name(SelectRule::kCascadeCover), "cascade-cover");
  EXPECT_EQ(rule_name(SelectRule::kFixed), "fixed");
}

TEST(Rules, AreFoundByTheirNamesAlone) {
  for (const SelectRule rule : kSelectRules) EXPECT_EQ(rule_of(rule_name(rule)), rule);
  for (const std::string_view name : {"", "Greedy", "cascade", "cascade-cover "})
    EXPECT_FALSE(rule_of(name).has_value()) << name;
}

TEST(Rules, AUserMayAskForAllButFixed) {
  EXPECT_EQ(rule_names(), (std::vector<std::string>{"independent", "greedy", "cascade-paper",
                                                    "cascade-causal", "cascade-cover"}));
}

TEST(Rules, StartFromASetOfTheirOwnGuarantee) {
  EXPECT_EQ(first_rule(SelectRule::kCascadePaper), SelectRule::kIndependent);
  EXPECT_EQ(first_rule(SelectRule::kCascadeCausal), SelectRule::kIndependent);
  EXPECT_EQ(first_rule(SelectRule::kCascadeCover), SelectRule::kGreedy);
  for (const SelectRule rule : kSelectRules) {
    const SelectRule first = first_rule(rule);
    EXPECT_EQ(first_rule(first), first) << rule_name(rule);  // it inherits nothing
  }
}

TEST(Rules, OnlyThePapersCascadeLooksAhead) {
  for (const SelectRule rule : kSelectRules)
    EXPECT_EQ(is_causal(rule), rule != SelectRule::kCascadePaper) << rule_name(rule);
}

TEST(Rules, ThePapersOwnAreIndependentAndItsCascade) {
  for (const SelectRule rule : kSelectRules)
    EXPECT_EQ(is_paper_setting(rule),
              rule == SelectRule::kIndependent || rule == SelectRule::kCascadePaper)
        << rule_name(rule);
}

}  // namespace
}  // namespace sluice::impl
