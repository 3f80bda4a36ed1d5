#include "io/tokenizer/decoder.h"

#include <gtest/gtest.h>

#include "io/tokenizer/json_values.h"
#include "unit/test_files.h"

namespace sluice::impl::tok {
namespace {

using Tokens = std::vector<std::string>;

// What every token adds, and what the end adds.
Tokens steps(const Decoder& decoder, const Tokens& tokens) {
  DecodeRun run(decoder);
  Tokens out;
  for (const std::string& token : tokens) out.push_back(run.push(token));
  out.push_back(run.finish());
  return out;
}

std::string joined(const char* json_text, const Tokens& tokens) {
  const Json json = Json::parse(json_text);
  const JsonSource source{json, "test", "a hint"};
  std::string all;
  for (const std::string& text : steps(*make_decoder(JsonValue(source)), tokens)) all += text;
  return all;
}

TEST(Decoder, ByteLevelWaitsForTheWholeCharacter) {
  EXPECT_EQ(steps(*make_byte_level_decoder(), {"a", "Ã", "©Ġ", "b"}),
            (Tokens{"a", "", "é ", "b", ""}));
  EXPECT_EQ(steps(*make_byte_level_decoder(), {"Ã", "b"}), (Tokens{"", "\uFFFDb", ""}));
  EXPECT_EQ(steps(*make_byte_level_decoder(), {"Ã"}), (Tokens{"", "\uFFFD"}));
  // A token outside the alphabet stands for itself.
  EXPECT_EQ(steps(*make_byte_level_decoder(), {"a b", "語"}), (Tokens{"a b", "語", ""}));
}

TEST(Decoder, WordPieceJoinsAndCleansUp) {
  const char* json = R"({"type":"WordPiece","prefix":"##","cleanup":true})";
  EXPECT_EQ(joined(json, {"un", "##able", "to", "stop", "."}), "unable to stop.");
  EXPECT_EQ(joined(json, {"##able", "do", "n't"}), "##able don't");
  EXPECT_EQ(joined(R"({"type":"WordPiece","cleanup":false})", {"a", "."}), "a .");
}

TEST(Decoder, MetaspaceDropsTheFirstMark) {
  EXPECT_EQ(joined(R"({"type":"Metaspace"})", {"▁a", "▁b"}), "a b");
  EXPECT_EQ(joined(R"({"type":"Metaspace","prepend_scheme":"never"})", {"▁a", "▁b"}), " a b");
}

constexpr const char* kLlama2 = R"({"type":"Sequence","decoders":[
    {"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},
    {"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})";

TEST(Decoder, SentencePieceStripsOneSpaceOfTheWhole) {
  EXPECT_EQ(joined(kLlama2, {"▁", "▁a", "▁b"}), " a b");
  EXPECT_EQ(joined(kLlama2, {"▁▁a"}), " a");
  EXPECT_EQ(joined(kLlama2, {}), "");
}

TEST(Decoder, ARunOfBytesIsAllRightOrAllWrong) {
  EXPECT_EQ(joined(kLlama2, {"<0xC3>", "<0xA9>", "x"}), "éx");
  EXPECT_EQ(joined(kLlama2, {"<0x41>", "<0xC3>", "x"}), "\uFFFD\uFFFDx");
}

TEST(Decoder, SentencePieceItselfKeepsTheValidBytes) {
  EXPECT_EQ(steps(*make_sentencepiece_decoder(true), {"▁a", "<0x41>", "<0xC3>", "x"}),
            (Tokens{"a", "A", "", "\uFFFDx", ""}));
}

TEST(Decoder, StripTakesFromBothEndsOfATokenOnly) {
  const char* json = R"({"type":"Strip","content":"_","start":2,"stop":1})";
  EXPECT_EQ(joined(json, {"___a__"}), "_a_");
  EXPECT_EQ(joined(json, {"_", "_"}), "");
  const char* fused = R"({"type":"Sequence","decoders":[{"type":"Fuse"},
                          {"type":"Strip","content":"_","start":1,"stop":2}]})";
  EXPECT_EQ(joined(fused, {"_a_", "_b", "_", "_"}), "a__b");
}

TEST(Decoder, ReplaceCrossesTokensThatWereFused) {
  const char* json = R"({"type":"Sequence","decoders":[{"type":"Fuse"},
                         {"type":"Replace","pattern":{"String":"aab"},"content":"-"}]})";
  EXPECT_EQ(joined(json, {"a", "aa", "b", "a", "ab", "aa"}), "a--aa");
  const char* regex = R"({"type":"Replace","pattern":{"Regex":"a+"},"content":"-"})";
  EXPECT_EQ(joined(regex, {"aab", "a"}), "-b-");
}

TEST(Decoder, BpeDecoderEndsWords) {
  EXPECT_EQ(joined(R"({"type":"BPEDecoder","suffix":"</w>"})", {"a", "b</w>", "c</w>"}), "ab c");
}

TEST(Decoder, WithoutOneTokensAreJoinedBySpaces) {
  EXPECT_EQ(steps(*make_space_joiner(), {"M", "K"}), (Tokens{"M", " K", ""}));
}

TEST(Decoder, AnUnknownTypeIsNamed) {
  test::expect_error([] { joined(R"({"type":"CTC"})", {}); }, {"CTC"});
  test::expect_error([] { joined(R"({"type":"Strip","start":-1})", {}); }, {"start"});
}

}  // namespace
}  // namespace sluice::impl::tok
