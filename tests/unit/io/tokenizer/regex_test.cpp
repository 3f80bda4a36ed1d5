#include "io/tokenizer/regex.h"

#include <gtest/gtest.h>

#include "io/tokenizer/regex_syntax.h"
#include "unit/test_files.h"

namespace sluice::impl::tok {
namespace {

std::vector<std::string> matches(const std::string& pattern, std::string_view text) {
  std::vector<std::string> found;
  for (const Span& span : Regex(pattern, "test").find_all(text)) {
    found.emplace_back(text.substr(span.begin, span.end - span.begin));
  }
  return found;
}

using Found = std::vector<std::string>;

TEST(Regex, RunsOfSpaceLeaveOneForTheWord) {
  EXPECT_EQ(matches(R"( ?\p{L}+|\s+(?!\S)|\s+)", "a   b  "), (Found{"a", "  ", " b", "  "}));
}

TEST(Regex, ContractionsInAnyCase) {
  EXPECT_EQ(matches(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|\p{L}+)", "WE'LL it's"),
            (Found{"WE", "'LL", "it", "'s"}));
}

TEST(Regex, SpaceAndWordAreOnigurumas) {
  EXPECT_EQ(matches(R"(\s)", "\u180E\u3000\u0085").size(), 2u);
  EXPECT_EQ(matches(R"(\w+)", "e\u0301नी_9-x"), (Found{"e\u0301नी_9", "x"}));
  EXPECT_EQ(matches(R"([^\s\w]+)", "a!? b"), (Found{"!?"}));
  EXPECT_EQ(matches(R"(\h+)", "xyz 1aF"), (Found{"1aF"}));
}

TEST(Regex, LineEdgesMatchInsideTheText) {
  EXPECT_EQ(matches("^a$", "a\nb\na"), (Found{"a", "a"}));
}

TEST(Regex, WordEdgesAreEmptyMatches) {
  const std::vector<Span> found = Regex(R"(\b)", "test").find_all("ab c");
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[1].begin, 2u);
  EXPECT_EQ(found[1].end, 2u);
}

TEST(Regex, AnEmptyMatchAfterAMatchIsLeftOut) {
  const std::vector<Span> found = Regex("a*", "test").find_all("baac");
  ASSERT_EQ(found.size(), 3u);  // before b, aa, at the end
  EXPECT_EQ(found[1].begin, 1u);
  EXPECT_EQ(found[1].end, 3u);
  EXPECT_EQ(found[2].begin, 4u);
}

TEST(Regex, FindsAMatchFarFromTheStart) {
  std::string text(20'000, 'a');
  for (size_t i = 0; i < 5000; ++i) text += "é";
  text += "!";
  EXPECT_EQ(matches("!", text), (Found{"!"}));
}

TEST(Regex, ManyRepetitionsOfAGroupDoNotOverflow) {
  const std::string text(1'000'000, 'a');
  EXPECT_EQ(matches("(?:a|b)+", text).size(), 1u);
}

TEST(Regex, CatastrophicBacktrackingEndsInAnError) {
  const Regex regex("(a+)+$", "file: key");
  test::expect_error([&] { regex.find_all(std::string(64, 'a') + "!"); },
                     {"file: key", "could not be matched"});
}

TEST(Regex, RefusalsNameThePattern) {
  for (const char* pattern : {"(", "[a", "a\\", "[a-z&&[^b]]", "[a[bc]]", "a{2}+", "(?m:a.b)",
                              "\\K", "\\p{NoSuch}", "(?<=a+)b", "\\p{L"}) {
    test::expect_error([&] { Regex(pattern, "file: key"); }, {"file: key", "pattern"});
  }
}

TEST(Regex, EscapedTextMatchesItself) {
  std::string text;
  for (char c = 1; c < 127; ++c) text += c;
  text += "é▁";
  EXPECT_EQ(matches(escape_regex(text), text), Found{text});
}

}  // namespace
}  // namespace sluice::impl::tok
