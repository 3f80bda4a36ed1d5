#include "io/tokenizer/char_class.h"

#include <gtest/gtest.h>

namespace sluice::impl::tok {
namespace {

TEST(CharClass, WhitespaceIsTheTwentyFiveOfUnicode) {
  int n = 0;
  for (char32_t c = 0; c < 0x110000; ++c) n += is_whitespace(c);
  EXPECT_EQ(n, 25);
  EXPECT_FALSE(is_whitespace(0x180E));  // left the class in Unicode 6.3
  EXPECT_FALSE(is_whitespace(0x200B));
}

TEST(CharClass, PunctuationTakesAllAsciiSymbols) {
  for (const char c : std::string("!#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")) {
    EXPECT_TRUE(is_punctuation(static_cast<char32_t>(c))) << c;
  }
  EXPECT_TRUE(is_punctuation(0x3002));
  EXPECT_FALSE(is_punctuation(0x20AC));  // a symbol outside ASCII
  EXPECT_FALSE(is_punctuation('a'));
}

TEST(CharClass, WordsHoldMarksAndJoiners) {
  for (const char32_t c : {U'a', U'Z', U'0', U'_', char32_t{0x301}, char32_t{0x93E},
                           char32_t{0x4E00}, char32_t{0x24B6}, char32_t{0x200D}}) {
    EXPECT_TRUE(is_word(c)) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : {U' ', U'-', char32_t{0xBD}, char32_t{0x1F600}}) {
    EXPECT_FALSE(is_word(c)) << static_cast<uint32_t>(c);
  }
}

TEST(CharClass, BertRemovesControlAndFormatButKeepsTabs) {
  for (const char32_t c :
       {char32_t{0}, char32_t{1}, char32_t{0x200B}, char32_t{0xFFFD}, char32_t{0xE000}}) {
    EXPECT_TRUE(is_bert_control(c)) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : {U'\t', U'\n', U'\r', U'a'}) EXPECT_FALSE(is_bert_control(c));
}

TEST(CharClass, LowerCaseOfDottedCapitalIIsTwoCharacters) {
  std::string out;
  append_lower(out, 0x130);
  append_lower(out, U'Σ');
  append_lower(out, U'a');
  EXPECT_EQ(out, "i\u0307σa");
}

}  // namespace
}  // namespace sluice::impl::tok
