// What single tokens read as, for every kind of tokenizer.

#include "eval/text/token_text.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "io/tokenizer/utf8.h"
#include "paths.h"

namespace sluice::impl {
namespace {

using Texts = std::vector<std::string>;

std::unique_ptr<Tokenizer> golden(const std::string& name) {
  return open_tokenizer(test::golden_dir() / "tokenizers" / name);
}

Texts texts_of(const std::string& name, const std::string& text) {
  const auto tokenizer = golden(name);
  Texts texts;
  for (const int32_t id : tokenizer->encode(text, false))
    texts.push_back(token_text(*tokenizer, id));
  return texts;
}

std::string joined(const Texts& texts) {
  std::string all;
  for (const std::string& text : texts) all += text;
  return all;
}

TEST(TokenText, OfByteLevelTokensIsTheirPartOfTheText) {
  const std::string text = "The walked, é\n\twith  two";
  EXPECT_EQ(joined(texts_of("gpt2", text)), text);
}

TEST(TokenText, BytesOfABrokenCharacterAreNamed) {
  // No token of this small vocabulary holds the whole of U+1F600, F0 9F 98 80.
  EXPECT_EQ(joined(texts_of("gpt2", "a😀b")), "a<0xF0><0x9F><0x98><0x80>b");
  EXPECT_EQ(joined(texts_of("llama2", "😀")), " <0xF0><0x9F><0x98><0x80>");
  EXPECT_EQ(joined(texts_of("unigram-bytes", "😀")), " <0xF0><0x9F><0x98><0x80>");
}

TEST(TokenText, ByteTokensThatAreACharacterReadAsIt) {
  const auto tokenizer = golden("llama2");
  EXPECT_EQ(token_text(*tokenizer, tokenizer->id_of("<0x0A>").value()), "\n");
  EXPECT_EQ(token_text(*tokenizer, tokenizer->id_of("<0x41>").value()), "A");
}

TEST(TokenText, KeepsTheSpaceBeforeAWord) {
  for (const char* name : {"llama2", "unigram-bytes", "bert-cased"})
    EXPECT_EQ(joined(texts_of(name, "the other")), " the other") << name;
}

TEST(TokenText, SpecialTokensAreSpelledOut) {
  const auto text = [](const char* name, const char* token) {
    const auto tokenizer = golden(name);
    return token_text(*tokenizer, tokenizer->id_of(token).value());
  };
  EXPECT_EQ(text("gpt2", "<|endoftext|>"), "<|endoftext|>");
  EXPECT_EQ(text("llama2", "<s>"), "<s>");
  EXPECT_EQ(text("bert-cased", "[CLS]"), "[CLS]");
}

TEST(TokenText, IsValidUtf8ForEveryTokenOfEveryTokenizer) {
  for (const auto& entry : std::filesystem::directory_iterator(test::golden_dir() / "tokenizers")) {
    if (!std::filesystem::exists(entry.path() / "tokenizer.json")) continue;
    const auto tokenizer = open_tokenizer(entry.path());
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      const std::string text = token_text(*tokenizer, id);
      EXPECT_TRUE(tok::is_valid_utf8(text)) << entry.path() << " " << id;
      EXPECT_EQ(text.empty(), tokenizer->token_of(id).empty()) << entry.path() << " " << id;
    }
  }
}

}  // namespace
}  // namespace sluice::impl
