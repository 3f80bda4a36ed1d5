#include "io/tokenizer/added_tokens.h"

#include <gtest/gtest.h>

namespace sluice::impl::tok {
namespace {

// Text as it is, tokens as [id].
std::string show(const AddedTokens& tokens, std::string_view text) {
  std::string out;
  for (const TextPart& part : tokens.split_raw(text)) {
    const std::string inside(text.substr(part.span.begin, part.span.end - part.span.begin));
    if (part.id) {
      out.append("[").append(std::to_string(*part.id)).append("]");
    } else {
      out.append("'").append(inside).append("'");
    }
  }
  return out;
}

AddedTokens make(const std::vector<AddedToken>& list) {
  AddedTokens tokens;
  int32_t id = 0;
  for (const AddedToken& token : list) EXPECT_TRUE(tokens.add(token, id++, nullptr));
  return tokens;
}

TEST(AddedTokens, TheLongestAtTheLeftmostPlaceWins) {
  const AddedTokens tokens = make({{.content = "ab"}, {.content = "abc"}, {.content = "bcd"}});
  EXPECT_EQ(show(tokens, "xabcd"), "'x'[1]'d'");
  EXPECT_EQ(show(tokens, "abab"), "[0][0]");
  EXPECT_EQ(show(tokens, ""), "");
}

TEST(AddedTokens, ASingleWordDoesNotTouchAnother) {
  const AddedTokens tokens = make({{.content = "cat", .single_word = true}});
  EXPECT_EQ(show(tokens, "cat"), "[0]");
  EXPECT_EQ(show(tokens, "a cat."), "'a '[0]'.'");
  EXPECT_EQ(show(tokens, "cats"), "'cats'");
  EXPECT_EQ(show(tokens, "écat"), "'écat'");
}

TEST(AddedTokens, StrippingTakesTheSpaceAround) {
  const AddedTokens tokens =
      make({{.content = "<l>", .lstrip = true}, {.content = "<r>", .rstrip = true}});
  EXPECT_EQ(show(tokens, "a \u3000<l> b"), "'a'[0]' b'");
  EXPECT_EQ(show(tokens, "a <r> \n b"), "'a '[1]'b'");
  EXPECT_EQ(show(tokens, "<r>  <l>"), "[1][0]");  // the space went to the first
}

TEST(AddedTokens, TooLongATokenIsNotTaken) {
  AddedTokens tokens;
  EXPECT_FALSE(tokens.add({.content = std::string(2000, 'a')}, 0, nullptr));
  EXPECT_EQ(show(tokens, "aaa"), "'aaa'");
}

TEST(AddedTokens, SpecialIsAPropertyOfTheText) {
  const AddedTokens tokens = make({{.content = "<s>", .special = true}, {.content = "x"}});
  EXPECT_TRUE(tokens.is_special("<s>"));
  EXPECT_FALSE(tokens.is_special("x"));
}

}  // namespace
}  // namespace sluice::impl::tok
