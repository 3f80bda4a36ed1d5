#include "io/tokenizer/normalizer.h"

#include <gtest/gtest.h>

#include "io/tokenizer/json_values.h"
#include "unit/test_files.h"

namespace sluice::impl::tok {
namespace {

NormalText normalized(const char* json_text, std::string text) {
  const Json json = Json::parse(json_text);
  const JsonSource source{json, "test", "a hint"};
  NormalText normal{std::move(text), true};
  make_normalizer(JsonValue(source))->apply(normal);
  return normal;
}

TEST(Normalizer, UnicodeForms) {
  EXPECT_EQ(normalized(R"({"type":"NFC"})", "e\u0301\u212B").text, "\u00E9\u00C5");
  EXPECT_EQ(normalized(R"({"type":"NFD"})", "\u00E9").text, "e\u0301");
  EXPECT_EQ(normalized(R"({"type":"NFKC"})", "\uFB01\u2460").text, "fi1");
  EXPECT_EQ(normalized(R"({"type":"NFKD"})", "\u1E9B\u0323").text, "s\u0323\u0307");
  EXPECT_EQ(normalized(R"({"type":"NFC"})", std::string("\0a\u00E9", 4)).text,
            std::string("\0a\u00E9", 4));
}

TEST(Normalizer, BertUncased) {
  EXPECT_EQ(normalized(R"({"type":"BertNormalizer"})", "\u00C9t\u00E9\t\x01語x").text, "ete  語 x");
}

TEST(Normalizer, BertStripsAccentsOnlyWhenItLowersOrIsTold) {
  EXPECT_EQ(normalized(R"({"type":"BertNormalizer","lowercase":false})", "É").text, "É");
  EXPECT_EQ(
      normalized(R"({"type":"BertNormalizer","lowercase":false,"strip_accents":true})", "É").text,
      "E");
}

TEST(Normalizer, PrependLeavesEmptyTextAlone) {
  EXPECT_EQ(normalized(R"({"type":"Prepend","prepend":"_"})", "a").text, "_a");
  EXPECT_EQ(normalized(R"({"type":"Prepend","prepend":"_"})", "").text, "");
}

TEST(Normalizer, ReplaceByTextAndByRegex) {
  EXPECT_EQ(normalized(R"({"type":"Replace","pattern":{"String":"."},"content":"!"})", "a.b").text,
            "a!b");
  EXPECT_EQ(
      normalized(R"({"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "})", "a   b").text,
      "a b");
}

TEST(Normalizer, StripKnowsWhatItTookFromTheFront) {
  const NormalText both =
      normalized(R"({"type":"Strip","strip_left":true,"strip_right":true})", " é\n");
  EXPECT_EQ(both.text, "é");
  EXPECT_FALSE(both.at_start);
  const NormalText right = normalized(R"({"type":"Strip","strip_left":false})", " é\n");
  EXPECT_EQ(right.text, " é");
  EXPECT_TRUE(right.at_start);
}

TEST(Normalizer, AnUnknownTypeIsNamed) {
  test::expect_error([] { normalized(R"({"type":"Precompiled"})", "x"); }, {"test", "Precompiled"});
  test::expect_error(
      [] { normalized(R"({"type":"Sequence","normalizers":[{"type":"Nmt"}]})", "x"); },
      {"normalizers[0]", "Nmt"});
}

}  // namespace
}  // namespace sluice::impl::tok
