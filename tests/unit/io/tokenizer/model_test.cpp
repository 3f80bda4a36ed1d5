// The models behind tokenizer.json and GGUF, each with a vocabulary small enough to follow by hand.

#include "io/tokenizer/model.h"

#include <gtest/gtest.h>

#include "io/tokenizer/json_values.h"
#include "io/tokenizer/model_lists.h"
#include "io/tokenizer/score_bpe_model.h"
#include "unit/test_files.h"

namespace sluice::impl::tok {
namespace {

using Ids = std::vector<int32_t>;

Ids tokenize(const Model& model, std::string_view word) {
  Ids ids;
  model.tokenize(word, ids);
  return ids;
}

Ids tokenize(const char* json_text, std::string_view word) {
  ModelLists lists(ModelLists::File::kTokenizer, "test");
  const Json json = parse_json(std::string(R"({"model":)") + json_text + "}", "test",
                               {.bytes = 10000, .values = 1000}, &lists);
  const JsonSource source{json, "test", "a hint"};
  return tokenize(*make_model(JsonValue(source).at("model"), lists, false), word);
}

TEST(Bpe, TheFirstMergeWinsWhereverItStands) {
  const char* json = R"({"type":"BPE","vocab":{"a":0,"b":1,"c":2,"ab":3,"bc":4,"abc":5},
                         "merges":["b c",["a","b"],"a bc"]})";
  EXPECT_EQ(tokenize(json, "abc"), (Ids{5}));
  EXPECT_EQ(tokenize(json, "abab"), (Ids{3, 3}));
  EXPECT_EQ(tokenize(json, "cab"), (Ids{2, 3}));
}

TEST(Bpe, EqualPairsMergeFromTheLeft) {
  EXPECT_EQ(tokenize(R"({"type":"BPE","vocab":{"a":0,"aa":1},"merges":["a a"]})", "aaaaa"),
            (Ids{1, 1, 0}));
}

TEST(Bpe, IgnoreMergesTakesAKnownWordWhole) {
  EXPECT_EQ(tokenize(R"({"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[],
                         "ignore_merges":true})",
                     "ab"),
            (Ids{2}));
}

TEST(Bpe, UnknownCharactersAreDroppedNamedOrFused) {
  EXPECT_EQ(tokenize(R"({"type":"BPE","vocab":{"a":0},"merges":[]})", "axya"), (Ids{0, 0}));
  EXPECT_EQ(tokenize(R"({"type":"BPE","vocab":{"a":0,"?":1},"merges":[],"unk_token":"?"})", "axya"),
            (Ids{0, 1, 1, 0}));
  EXPECT_EQ(tokenize(R"({"type":"BPE","vocab":{"a":0,"?":1},"merges":[],"unk_token":"?",
                         "fuse_unk":true})",
                     "axya"),
            (Ids{0, 1, 0}));
}

TEST(Bpe, BytesStandInForAnUnknownCharacter) {
  EXPECT_EQ(tokenize(R"({"type":"BPE","vocab":{"a":0,"<0xC3>":1,"<0xA9>":2},"merges":[],
                         "byte_fallback":true})",
                     "a\xC3\xA9"),
            (Ids{0, 1, 2}));
}

TEST(Bpe, PrefixAndSuffixMarkThePlaceInTheWord) {
  EXPECT_EQ(tokenize(R"({"type":"BPE","vocab":{"a":0,"##b":1,"ab":2},"merges":["a ##b"],
                         "continuing_subword_prefix":"##"})",
                     "ab"),
            (Ids{2}));
  EXPECT_EQ(tokenize(R"({"type":"BPE","vocab":{"a":0,"b</w>":1,"ab</w>":2},"merges":["a b</w>"],
                         "end_of_word_suffix":"</w>"})",
                     "ab"),
            (Ids{2}));
}

TEST(Bpe, AMissingUnkTokenIsSaidWhenItIsNeeded) {
  const char* json = R"({"type":"BPE","vocab":{"a":0},"merges":[],"unk_token":"?"})";
  EXPECT_EQ(tokenize(json, "a"), (Ids{0}));
  test::expect_error([&] { tokenize(json, "x"); }, {"test: model", "unk_token"});
}

TEST(WordPiece, TakesTheLongestPrefix) {
  const char* json = R"({"type":"WordPiece","unk_token":"?","max_input_chars_per_word":5,
                         "vocab":{"?":0,"un":1,"una":2,"##b":3,"##le":4,"é":5}})";
  EXPECT_EQ(tokenize(json, "unab"), (Ids{2, 3}));
  EXPECT_EQ(tokenize(json, "unx"), (Ids{0}));     // nothing fits the rest
  EXPECT_EQ(tokenize(json, "unable"), (Ids{0}));  // six characters
  EXPECT_EQ(tokenize(json, "é"), (Ids{5}));
}

TEST(WordLevel, LooksTheWordUp) {
  const char* json = R"({"type":"WordLevel","unk_token":"?","vocab":{"?":0,"word":7}})";
  EXPECT_EQ(tokenize(json, "word"), (Ids{7}));
  EXPECT_EQ(tokenize(json, "wor"), (Ids{0}));
}

TEST(Unigram, TakesTheBestSum) {
  const char* json = R"({"type":"Unigram","unk_id":0,"vocab":[["?",0],["a",0],["b",0],["c",0],
                         ["d",0],["cd",1],["ab",2],["abc",5],["abcd",10]]})";
  EXPECT_EQ(tokenize(json, "abcd"), (Ids{8}));
  EXPECT_EQ(tokenize(json, "abc"), (Ids{7}));
  EXPECT_EQ(tokenize(json, "abcdacdxx"), (Ids{8, 1, 5, 0}));  // two unknowns, one token
}

TEST(Unigram, BytesStandInForUnknowns) {
  EXPECT_EQ(tokenize(R"({"type":"Unigram","unk_id":0,"byte_fallback":true,
                         "vocab":[["?",0],["a",-1],["<0x62>",-2]]})",
                     "ab"),
            (Ids{1, 2}));
}

TEST(ScoreBpe, HighestScoreGoesFirst) {
  const ScoreBpeModel model({{"<unk>", 0, TokenType::kUnknown},
                             {"a", -1},
                             {"b", -2},
                             {"c", -3},
                             {"ab", -5},
                             {"bc", -4},
                             {"<u>", 0, TokenType::kUserDefined}},
                            "test");
  EXPECT_EQ(tokenize(model, "abc"), (Ids{1, 5}));
  EXPECT_EQ(tokenize(model, "a<u>b"), (Ids{1, 6, 2}));
  EXPECT_EQ(tokenize(model, "axyb"), (Ids{1, 0, 2}));
}

TEST(Model, FilesWithoutATypeAreRecognised) {
  EXPECT_EQ(tokenize(R"({"vocab":{"a":0},"merges":[]})", "a"), (Ids{0}));
  EXPECT_EQ(tokenize(R"({"vocab":[["a",0]]})", "a"), (Ids{0}));
}

}  // namespace
}  // namespace sluice::impl::tok
