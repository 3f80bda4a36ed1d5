#include "io/tokenizer/utf8.h"

#include <gtest/gtest.h>

namespace sluice::impl::tok {
namespace {

TEST(Utf8, EveryCodePointComesBack) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    const std::string text = to_utf8(code);
    const Utf8Char c = decode_char(text, 0);
    ASSERT_TRUE(c.valid) << static_cast<uint32_t>(code);
    ASSERT_EQ(c.code, code);
    ASSERT_EQ(c.n_bytes, text.size());
  }
}

TEST(Utf8, OverlongFormsAndSurrogatesAreInvalid) {
  for (const char* text : {"\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
                           "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\x80", "\xFF"}) {
    EXPECT_FALSE(is_valid_utf8(text)) << text;
  }
}

TEST(Utf8, RepairPutsOneMarkPerLongestSensiblePrefix) {
  EXPECT_EQ(repair_utf8("a\xE2\x82z"), "a\uFFFDz");              // one cut character
  EXPECT_EQ(repair_utf8("\xE2\x28\xA1"), "\uFFFD(\uFFFD");       // lead, plain, stray
  EXPECT_EQ(repair_utf8("\xF0\x9F\x98"), "\uFFFD");              // cut at the end
  EXPECT_EQ(repair_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate
  EXPECT_EQ(repair_utf8("plain"), "plain");
}

TEST(Utf8, IncompleteSuffixCountsOnlyWhatCanStillGrow) {
  EXPECT_EQ(incomplete_suffix(""), 0u);
  EXPECT_EQ(incomplete_suffix("a"), 0u);
  EXPECT_EQ(incomplete_suffix("a\xE2"), 1u);
  EXPECT_EQ(incomplete_suffix("a\xE2\x82"), 2u);
  EXPECT_EQ(incomplete_suffix("a\xE2\x82\xAC"), 0u);
  EXPECT_EQ(incomplete_suffix("\xF0\x9F\x98"), 3u);
  EXPECT_EQ(incomplete_suffix("\xE0\x80"), 0u);  // already wrong
  EXPECT_EQ(incomplete_suffix("\x80\x80"), 0u);
}

}  // namespace
}  // namespace sluice::impl::tok
