#include "io/tokenizer/pre_tokenizer.h"

#include <gtest/gtest.h>

#include "io/tokenizer/json_values.h"
#include "unit/test_files.h"

namespace sluice::impl::tok {
namespace {

std::vector<std::string> apply(const char* json_text, const std::string& text,
                               bool at_start = true) {
  const Json json = Json::parse(json_text);
  const JsonSource source{json, "test", "a hint"};
  std::vector<Piece> pieces = {{text, at_start}};
  make_pre_tokenizer(JsonValue(source))->apply(pieces);
  std::vector<std::string> texts;
  for (const Piece& piece : pieces) texts.push_back(piece.text);
  return texts;
}

using Texts = std::vector<std::string>;

TEST(PreTokenizer, ByteLevelSpellsBytes) {
  EXPECT_EQ(apply(R"({"type":"ByteLevel","add_prefix_space":false})", "Hi you\n\xC3\xA9"),
            (Texts{"Hi", "Ġyou", "Ċ", "Ã©"}));
  EXPECT_EQ(apply(R"({"type":"ByteLevel","add_prefix_space":true})", "Hi"), (Texts{"ĠHi"}));
  EXPECT_EQ(apply(R"({"type":"ByteLevel","add_prefix_space":true})", " Hi"), (Texts{"ĠHi"}));
  EXPECT_EQ(apply(R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})", "a b"),
            (Texts{"aĠb"}));
}

TEST(PreTokenizer, MetaspacePrependsByItsScheme) {
  EXPECT_EQ(apply(R"({"type":"Metaspace","prepend_scheme":"always"})", "a b", false),
            (Texts{"▁a", "▁b"}));
  EXPECT_EQ(apply(R"({"type":"Metaspace","prepend_scheme":"first"})", "a b", false),
            (Texts{"a", "▁b"}));
  EXPECT_EQ(apply(R"({"type":"Metaspace","prepend_scheme":"first"})", "a b"), (Texts{"▁a", "▁b"}));
  EXPECT_EQ(apply(R"({"type":"Metaspace","prepend_scheme":"never"})", "a b"), (Texts{"a", "▁b"}));
  EXPECT_EQ(apply(R"({"type":"Metaspace","prepend_scheme":"first","split":false})", "a b"),
            (Texts{"▁a▁b"}));
  EXPECT_EQ(apply(R"({"type":"Metaspace","add_prefix_space":false})", "a b"), (Texts{"a", "▁b"}));
}

TEST(PreTokenizer, OnlyThePieceAtTheStartIsFirst) {
  const char* json = R"({"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},
                         {"type":"Metaspace","prepend_scheme":"first"}]})";
  EXPECT_EQ(apply(json, "a b"), (Texts{"▁a", "b"}));
  EXPECT_EQ(apply(json, " a b"), (Texts{"a", "b"}));
}

TEST(PreTokenizer, BertCutsAtSpaceAndPunctuation) {
  EXPECT_EQ(apply(R"({"type":"BertPreTokenizer"})", "don't  stop。"),
            (Texts{"don", "'", "t", "stop", "。"}));
}

TEST(PreTokenizer, WhitespaceKeepsWordsAndTheRest) {
  EXPECT_EQ(apply(R"({"type":"Whitespace"})", "a_b!? c"), (Texts{"a_b", "!?", "c"}));
}

TEST(PreTokenizer, DigitsAloneOrInRuns) {
  EXPECT_EQ(apply(R"({"type":"Digits","individual_digits":true})", "a12"), (Texts{"a", "1", "2"}));
  EXPECT_EQ(apply(R"({"type":"Digits","individual_digits":false})", "a12"), (Texts{"a", "12"}));
}

TEST(PreTokenizer, PunctuationTakesABehavior) {
  EXPECT_EQ(apply(R"({"type":"Punctuation"})", "a!!b"), (Texts{"a", "!", "!", "b"}));
  EXPECT_EQ(apply(R"({"type":"Punctuation","behavior":"Contiguous"})", "a!!b"),
            (Texts{"a", "!!", "b"}));
}

TEST(PreTokenizer, AnUnknownTypeIsNamed) {
  test::expect_error([] { apply(R"({"type":"UnicodeScripts"})", "x"); }, {"UnicodeScripts"});
  test::expect_error([] { apply(R"({"type":"Metaspace","prepend_scheme":"x"})", "x"); },
                     {"prepend_scheme"});
}

}  // namespace
}  // namespace sluice::impl::tok
