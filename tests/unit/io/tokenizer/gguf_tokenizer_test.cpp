#include <gtest/gtest.h>

#include "io/gguf.h"
#include "io/tokenizer/tokenizer.h"
#include "unit/test_files.h"

namespace sluice::impl {
namespace {

using Ids = std::vector<int32_t>;
using Strings = std::vector<std::string>;

GgufFile sentencepiece_file() {
  GgufFile file;
  file.path = "model.gguf";
  file.metadata["tokenizer.ggml.model"] = std::string("llama");
  file.metadata["tokenizer.ggml.tokens"] =
      Strings{"<unk>", "<s>", "</s>", "<0x41>", "▁", "a", "b", "▁a", "<u>"};
  file.metadata["tokenizer.ggml.scores"] = std::vector<double>{0, 0, 0, 0, -1, -2, -3, -1.5, 0};
  file.metadata["tokenizer.ggml.token_type"] = std::vector<int64_t>{2, 3, 3, 6, 1, 1, 1, 1, 4};
  file.metadata["tokenizer.ggml.bos_token_id"] = int64_t{1};
  file.metadata["tokenizer.ggml.eos_token_id"] = int64_t{2};
  return file;
}

GgufFile byte_level_file() {
  GgufFile file;
  file.path = "model.gguf";
  file.metadata["tokenizer.ggml.model"] = std::string("gpt2");
  file.metadata["tokenizer.ggml.pre"] = std::string("gpt-2");
  file.metadata["tokenizer.ggml.tokens"] = Strings{"a", "b", "ab", "Ġ", "1", "<|end|>", "<u>"};
  file.metadata["tokenizer.ggml.token_type"] = std::vector<int64_t>{1, 1, 1, 1, 1, 3, 4};
  file.metadata["tokenizer.ggml.merges"] = Strings{"a b"};
  file.metadata["tokenizer.ggml.bos_token_id"] = int64_t{5};
  return file;
}

TEST(GgufTokenizer, SentencePieceAddsBosAndASpace) {
  const auto tokenizer = open_tokenizer(sentencepiece_file());
  EXPECT_EQ(tokenizer->encode("a b", true), (Ids{1, 7, 4, 6}));
  EXPECT_EQ(tokenizer->encode("A", false), (Ids{4, 3}));  // by bytes
  EXPECT_EQ(tokenizer->decode(Ids{1, 7, 4, 6}, true), "a b");
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
}

TEST(GgufTokenizer, ControlTokensInTextAreRecognised) {
  const auto tokenizer = open_tokenizer(sentencepiece_file());
  EXPECT_EQ(tokenizer->encode("a</s>a", false), (Ids{7, 2, 7}));
  EXPECT_TRUE(tokenizer->is_special(2));
  EXPECT_EQ(tokenizer->encode("a<u>b", false), (Ids{7, 8, 6}));
  EXPECT_FALSE(tokenizer->is_special(8));
}

TEST(GgufTokenizer, ControlTokensOfPhi3TakeTheWhitespaceAfterThemAlong) {
  GgufFile file = sentencepiece_file();
  EXPECT_EQ(open_tokenizer(file)->encode("</s> \n a", false).size(), 5u);
  file.metadata["general.architecture"] = std::string("phi3");
  EXPECT_EQ(open_tokenizer(file)->encode("</s> \n a", false), (Ids{2, 7}));
  EXPECT_EQ(open_tokenizer(file)->encode("<s> a", false), (Ids{1, 4, 7}));
}

TEST(GgufTokenizer, TheFileDecidesAboutPrefixBosAndEos) {
  GgufFile file = sentencepiece_file();
  file.metadata["tokenizer.ggml.add_space_prefix"] = false;
  file.metadata["tokenizer.ggml.add_bos_token"] = false;
  file.metadata["tokenizer.ggml.add_eos_token"] = true;
  const auto tokenizer = open_tokenizer(file);
  EXPECT_EQ(tokenizer->encode("a a", true), (Ids{5, 7, 2}));
  EXPECT_EQ(tokenizer->decode(Ids{7, 7}, true), " a a");
}

TEST(GgufTokenizer, ByteLevelKnowsControlAndUserDefined) {
  const auto tokenizer = open_tokenizer(byte_level_file());
  EXPECT_EQ(tokenizer->encode("ab<|end|><u> a", true), (Ids{2, 5, 6, 3, 0}));
  EXPECT_EQ(tokenizer->decode(Ids{2, 5, 6, 3, 0}, true), "ab<u> a");
}

TEST(GgufTokenizer, Llama3AddsBosUnlessTold) {
  GgufFile file = byte_level_file();
  file.metadata["tokenizer.ggml.pre"] = std::string("llama-bpe");
  EXPECT_EQ(open_tokenizer(file)->encode("a", true), (Ids{5, 0}));
  file.metadata["tokenizer.ggml.add_bos_token"] = false;
  EXPECT_EQ(open_tokenizer(file)->encode("a", true), (Ids{0}));
}

// Pythia's cut and its normalization: U+0061 U+030A is one character, U+00E5.
TEST(GgufTokenizer, NeoXComposesCharacters) {
  GgufFile file = byte_level_file();
  file.metadata["tokenizer.ggml.tokens"] =
      Strings{"a", "\u00CC", "\u012C", "\u00C3", "\u00A5", "x", "y"};
  file.metadata["tokenizer.ggml.merges"] = Strings{};
  EXPECT_EQ(open_tokenizer(file)->encode("a\u030A", false), (Ids{0, 1, 2}));
  file.metadata["tokenizer.ggml.pre"] = std::string("olmo");
  EXPECT_EQ(open_tokenizer(file)->encode("a\u030A", false), (Ids{3, 4}));
}

TEST(GgufTokenizer, RefusalsNameFileAndKey) {
  const auto refuse = [](auto change, const Strings& fragments) {
    for (GgufFile file : {byte_level_file(), sentencepiece_file()}) {
      change(file);
      test::expect_error([&] { open_tokenizer(file); }, fragments);
    }
  };
  const auto set = [](std::string_view key, GgufValue value) {
    return [key, value](GgufFile& file) { file.metadata[std::string(key)] = value; };
  };
  refuse([](GgufFile& file) { file.metadata.erase("tokenizer.ggml.model"); },
         {"model.gguf", "tokenizer.ggml.model"});
  refuse(set("tokenizer.ggml.model", std::string("bert")), {"tokenizer.ggml.model", "bert"});
  refuse(set("tokenizer.ggml.tokens", Strings{}), {"tokenizer.ggml.tokens"});
  refuse(set("tokenizer.ggml.tokens", int64_t{3}), {"tokenizer.ggml.tokens"});
  refuse(set("tokenizer.ggml.token_type", std::vector<int64_t>{1}), {"tokenizer.ggml.token_type"});
  refuse(set("tokenizer.ggml.scores", std::vector<double>{1}), {"tokenizer.ggml.scores"});
  refuse(set("tokenizer.ggml.bos_token_id", int64_t{-1}), {"tokenizer.ggml.bos_token_id"});
  refuse(set("tokenizer.ggml.eos_token_id", int64_t{1} << 40), {"tokenizer.ggml.eos_token_id"});
}

TEST(GgufTokenizer, AnUnknownPreIsRefused) {
  GgufFile file = byte_level_file();
  file.metadata["tokenizer.ggml.pre"] = std::string("brand-new");
  test::expect_error([&] { open_tokenizer(file); }, {"tokenizer.ggml.pre", "brand-new"});
}

TEST(GgufTokenizer, DamagedTokensAndMergesAreRefused) {
  GgufFile file = byte_level_file();
  file.metadata["tokenizer.ggml.merges"] = Strings{"a"};
  test::expect_error([&] { open_tokenizer(file); }, {"tokenizer.ggml.merges[0]"});
  file.metadata["tokenizer.ggml.merges"] = Strings{"a zz"};
  test::expect_error([&] { open_tokenizer(file); }, {"tokenizer.ggml.merges", "zz"});
  file = byte_level_file();
  std::get<Strings>(file.metadata["tokenizer.ggml.tokens"])[0] = "\xFF";
  test::expect_error([&] { open_tokenizer(file); }, {"tokenizer.ggml.tokens[0]"});
  file = byte_level_file();
  std::get<std::vector<int64_t>>(file.metadata["tokenizer.ggml.token_type"])[0] = 9;
  test::expect_error([&] { open_tokenizer(file); }, {"tokenizer.ggml.token_type[0]"});
}

}  // namespace
}  // namespace sluice::impl
