// What the files of a model folder say about special tokens, and which files are looked for.

#include <gtest/gtest.h>

#include "unit/io/tokenizer/tokenizer_files.h"

namespace sluice::impl {
namespace {

using Ids = std::vector<int32_t>;
using test::small_tokenizer;
using test::TokenizerFolder;

TEST(OpenTokenizer, EncodesAndDecodes) {
  const auto tokenizer = TokenizerFolder(small_tokenizer()).open();
  EXPECT_EQ(tokenizer->encode("ab cé", true), (Ids{7, 6, 3, 2, 4, 5}));
  EXPECT_EQ(tokenizer->encode("ab<s>", false), (Ids{6, 7}));
  EXPECT_EQ(tokenizer->decode(Ids{7, 6, 3, 4, 5}, true), "ab é");
  EXPECT_EQ(tokenizer->decode(Ids{7, 6}, false), "<s>ab");
  EXPECT_EQ(tokenizer->vocab_size(), 8);
  EXPECT_EQ(tokenizer->kind(), "byte-level BPE");
  EXPECT_EQ(tokenizer->token_of(6), "ab");
  EXPECT_EQ(tokenizer->token_of(99), "");
  EXPECT_EQ(tokenizer->id_of("<s>"), 7);
  EXPECT_EQ(tokenizer->id_of("zz"), std::nullopt);
  EXPECT_TRUE(tokenizer->is_special(7));
  EXPECT_FALSE(tokenizer->is_special(6));
}

TEST(OpenTokenizer, IdsOutsideTheVocabularyCannotBeDecoded) {
  const auto tokenizer = TokenizerFolder(small_tokenizer()).open();
  test::expect_error([&] { tokenizer->decode(Ids{8}, false); }, {"8"});
  test::expect_error([&] { tokenizer->decode(Ids{-1}, false); }, {"-1"});
}

TEST(OpenTokenizer, TextThatIsNotUtf8IsRepairedFirst) {
  const auto tokenizer = TokenizerFolder(small_tokenizer()).open();
  EXPECT_EQ(tokenizer->encode("a\xFF"
                              "b",
                              false),
            (Ids{0, 1}));  // U+FFFD has no tokens here
}

TEST(OpenTokenizer, BosAndEosInBothForms) {
  TokenizerFolder folder(small_tokenizer());
  folder.put("tokenizer_config.json", {{"bos_token", "<s>"}, {"eos_token", {{"content", "ab"}}}});
  const auto tokenizer = folder.open();
  EXPECT_EQ(tokenizer->bos(), 7);
  EXPECT_EQ(tokenizer->eos(), 6);
  EXPECT_TRUE(tokenizer->is_special(6));  // named special, so it is
}

TEST(OpenTokenizer, SpecialTokensMapFillsTheGaps) {
  TokenizerFolder folder(small_tokenizer());
  folder.put("tokenizer_config.json", {{"bos_token", nullptr}});
  folder.put("special_tokens_map.json", {{"bos_token", "<s>"}, {"eos_token", "nowhere"}});
  const auto tokenizer = folder.open();
  EXPECT_EQ(tokenizer->bos(), 7);
  EXPECT_EQ(tokenizer->eos(), std::nullopt);
}

TEST(OpenTokenizer, AddBosTokenAddsItOnce) {
  auto described = small_tokenizer();
  const nlohmann::json config = {
      {"bos_token", "<s>"}, {"eos_token", "<s>"}, {"add_bos_token", true}, {"add_eos_token", true}};
  TokenizerFolder with_template(described);
  with_template.put("tokenizer_config.json", config);
  EXPECT_EQ(with_template.open()->encode("a", true), (Ids{7, 0, 7}));
  described["post_processor"] = nullptr;
  TokenizerFolder without(described);
  without.put("tokenizer_config.json", config);
  EXPECT_EQ(without.open()->encode("a", true), (Ids{7, 0, 7}));
  EXPECT_EQ(without.open()->encode("a", false), (Ids{0}));
}

TEST(OpenTokenizer, EsmNeedsOnlyItsVocabulary) {
  TokenizerFolder folder;
  folder.dir.write("vocab.txt", "<cls>\n<pad>\n<eos>\n<unk>\nL\nA\r\n<mask>");
  folder.put("tokenizer_config.json", {{"tokenizer_class", "EsmTokenizer"}});
  const auto tokenizer = folder.open();
  EXPECT_EQ(tokenizer->encode("LA zz<mask>", true), (Ids{0, 4, 5, 3, 6, 2}));
  EXPECT_EQ(tokenizer->decode(Ids{0, 4, 5, 2}, true), "L A");
  EXPECT_EQ(tokenizer->kind(), "ESM");
  EXPECT_EQ(tokenizer->bos(), std::nullopt);
  EXPECT_EQ(tokenizer->eos(), 2);
}

TEST(OpenTokenizer, EsmIsAlsoKnownByItsConfig) {
  TokenizerFolder folder;
  folder.dir.write("vocab.txt", "<cls>\n<pad>\n<eos>\n<unk>\nL");
  folder.put("config.json", {{"model_type", "esm"}});
  EXPECT_EQ(folder.open()->encode("L", true), (Ids{0, 4, 2}));
}

TEST(OpenTokenizer, Gpt2FilesServeWithoutATokenizerJson) {
  TokenizerFolder folder;
  folder.put("vocab.json", {{"a", 0}, {"b", 1}, {"ab", 2}, {"</s>", 3}});
  folder.dir.write("merges.txt", "#version: 0.2\na b\n");
  folder.put("tokenizer_config.json", {{"bos_token", "</s>"}, {"add_bos_token", true}});
  EXPECT_EQ(folder.open()->encode("ab</s>", true), (Ids{3, 2, 3}));
}

TEST(OpenTokenizer, AFolderWithoutATokenizerIsNamed) {
  TokenizerFolder folder;
  test::expect_error([&] { folder.open(); }, {folder.dir.path().string(), "tokenizer.json"});
  folder.dir.write("vocab.txt", "[CLS]\n");  // of a BERT, say
  test::expect_error([&] { folder.open(); }, {"tokenizer.json"});
}

}  // namespace
}  // namespace sluice::impl
