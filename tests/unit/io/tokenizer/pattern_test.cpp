#include "io/tokenizer/pattern.h"

#include <gtest/gtest.h>

namespace sluice::impl::tok {
namespace {

std::vector<std::string> split(std::string_view text, SplitBehavior behavior, bool invert = false) {
  const std::vector<Span> matches = Pattern::from_text("-").find_all(text);
  std::vector<std::string> parts;
  for (const Span& span : split_spans({text.size(), matches, behavior, invert})) {
    parts.emplace_back(text.substr(span.begin, span.end - span.begin));
  }
  return parts;
}

using Parts = std::vector<std::string>;
constexpr std::string_view kText = "the-final--countdown";

TEST(Split, RemovedDropsTheDelimiter) {
  EXPECT_EQ(split(kText, SplitBehavior::kRemoved), (Parts{"the", "final", "countdown"}));
}
TEST(Split, IsolatedKeepsItApart) {
  EXPECT_EQ(split(kText, SplitBehavior::kIsolated),
            (Parts{"the", "-", "final", "-", "-", "countdown"}));
}
TEST(Split, MergedWithPreviousTakesOne) {
  EXPECT_EQ(split(kText, SplitBehavior::kMergedWithPrevious),
            (Parts{"the-", "final-", "-", "countdown"}));
}
TEST(Split, MergedWithNextTakesOne) {
  EXPECT_EQ(split(kText, SplitBehavior::kMergedWithNext),
            (Parts{"the", "-final", "-", "-countdown"}));
}
TEST(Split, ContiguousKeepsRunsTogether) {
  EXPECT_EQ(split(kText, SplitBehavior::kContiguous),
            (Parts{"the", "-", "final", "--", "countdown"}));
}
TEST(Split, InvertSwapsTextAndDelimiter) {
  EXPECT_EQ(split(kText, SplitBehavior::kRemoved, true), (Parts{"-", "-", "-"}));
}
TEST(Split, EmptyTextHasNoParts) {
  EXPECT_TRUE(split("", SplitBehavior::kIsolated).empty());
  EXPECT_TRUE(split("--", SplitBehavior::kRemoved).empty());
}

TEST(Pattern, ReplaceSpansPutsTheContentInTheirPlace) {
  EXPECT_EQ(replace_spans("a-b-", Pattern::from_text("-").find_all("a-b-"), "++"), "a++b++");
  EXPECT_TRUE(Pattern::from_text("").find_all("abc").empty());
}

}  // namespace
}  // namespace sluice::impl::tok
