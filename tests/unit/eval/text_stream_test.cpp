// A text file as tokens: documents, borders, pieces.

#include "eval/text/text_stream.h"

#include <gtest/gtest.h>

#include "unit/model/byte_tokenizer.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

constexpr int32_t kBos = 256, kEos = 257;
constexpr const char* kSeparator = "<|endoftext|>";

class TextStreamTest : public testing::Test {
 protected:
  // The stream as text, each document's first token as "^" (BOS) or "$" (EOS).
  std::string spelled(TextStream& stream, int64_t step = int64_t{1} << 40) {
    std::vector<int32_t> tokens;
    while (true) {
      const size_t old = tokens.size();
      const int64_t n = stream.read(step, tokens);
      EXPECT_EQ(static_cast<int64_t>(tokens.size() - old), n);
      if (n < step) break;
    }
    std::string text;
    for (const int32_t id : tokens)
      text += id == kBos ? '^' : id == kEos ? '$' : static_cast<char>(id);
    return text;
  }
  std::string spelled(const std::string& content, const std::string& separator = kSeparator) {
    TextStream stream(dir.write("text", content), with_bos, separator);
    return spelled(stream);
  }

  const TempDir dir;
  const ByteTokenizer with_bos{{.first_byte = 0, .vocab = 256, .bos = kBos, .eos = kEos}};
  const ByteTokenizer with_eos{{.first_byte = 0, .vocab = 256, .bos = {}, .eos = kEos}};
  const ByteTokenizer bare{{}};
};

TEST_F(TextStreamTest, DocumentsBeginWithBosAndLoseTheNewlinesAroundThem) {
  EXPECT_EQ(spelled("one"), "^one");
  EXPECT_EQ(spelled("one<|endoftext|>two"), "^one^two");
  EXPECT_EQ(spelled("\n\none\n<|endoftext|>\r\n\ntwo\nlines\r\n"), "^one^two\nlines");
  EXPECT_EQ(spelled("  one \n<|endoftext|> two"), "^  one ^ two");
}

TEST_F(TextStreamTest, EmptyDocumentsAreSkipped) {
  EXPECT_EQ(
      spelled("<|endoftext|>one<|endoftext|><|endoftext|>\n\n<|endoftext|>two<|endoftext|>\n"),
      "^one^two");
  EXPECT_EQ(spelled("<|endoftext|>\n<|endoftext|>"), "");
}

TEST_F(TextStreamTest, WithoutASeparatorTheFileIsOneDocument) {
  EXPECT_EQ(spelled("one<|endoftext|>two\n\nthree", ""), "^one<|endoftext|>two\n\nthree");
}

TEST_F(TextStreamTest, EosStandsInForBos) {
  const auto path = dir.write("text", "one<|endoftext|>two");
  TextStream stream(path, with_eos, kSeparator);
  EXPECT_EQ(spelled(stream), "$one$two");
  TextStream plain(path, bare, kSeparator);
  EXPECT_EQ(spelled(plain), "onetwo");
}

TEST_F(TextStreamTest, CountsDocumentsAndTheShareGiven) {
  TextStream stream(dir.write("text", "one<|endoftext|>two<|endoftext|>"), with_bos, kSeparator);
  EXPECT_EQ(stream.share_given(), 0);
  std::vector<int32_t> tokens;
  stream.read(2, tokens);  // of four, one of which begins the document
  EXPECT_NEAR(stream.share_given(), (16 - 1.5) / 32, 1e-9);
  stream.read(2, tokens);
  EXPECT_NEAR(stream.share_given(), 0.5, 1e-9);
  spelled(stream);
  EXPECT_EQ(stream.share_given(), 1);
  EXPECT_EQ(stream.n_documents(), 2);
}

TEST_F(TextStreamTest, AnEmptyFileHasNoTokens) {
  EXPECT_EQ(spelled(""), "");
  EXPECT_EQ(spelled("\n\n\n"), "");
}

TEST_F(TextStreamTest, ReadsOfEverySizeGiveTheSameStream) {
  std::string content;
  for (int i = 0; i < 300; ++i)
    content += "document " + std::to_string(i) + (i % 7 == 0 ? "\n<|endoftext|>\n" : " goes on\n");
  const auto path = dir.write("text", content);
  TextStream whole(path, with_bos, kSeparator);
  const std::string expected = spelled(whole);
  for (const int64_t step : {1, 2, 3, 17, 1000}) {
    TextStream stream(path, with_bos, kSeparator);
    EXPECT_EQ(spelled(stream, step), expected) << step;
  }
}

// Long documents are cut into pieces; put together they are the document.
class LongDocument : public TextStreamTest, public testing::WithParamInterface<std::string> {};

TEST_P(LongDocument, PiecesJoinToTheWholeWithoutSplittingACharacter) {
  std::string content;
  while (content.size() < 5 * TextStream::kPieceBytes / 2) content += GetParam();
  // A tokenizer that refuses a piece that begins inside a character.
  class Checking : public ByteTokenizer {
   public:
    using ByteTokenizer::ByteTokenizer;
    std::vector<int32_t> encode(std::string_view text, bool add_special) const override {
      EXPECT_FALSE(text.empty());
      EXPECT_NE(static_cast<unsigned char>(text.front()) & 0xc0, 0x80) << "inside a character";
      EXPECT_LE(text.size(), TextStream::kPieceBytes);
      ++n_pieces;
      return ByteTokenizer::encode(text, add_special);
    }
    mutable int n_pieces = 0;
  };
  const Checking tokenizer{{.first_byte = 0, .vocab = 256, .bos = kBos, .eos = kEos}};
  TextStream stream(dir.write("text", content + "\n<|endoftext|>after"), tokenizer, kSeparator);
  std::string expected = content;
  while (expected.ends_with('\n')) expected.pop_back();
  expected.erase(0, expected.find_first_not_of('\n'));
  expected = "^" + expected + "^after";
  // Not EXPECT_EQ: it would print megabytes.
  EXPECT_TRUE(spelled(stream, 99991) == expected);
  EXPECT_EQ(stream.n_documents(), 2);
  EXPECT_GE(tokenizer.n_pieces, 4);
}

INSTANTIATE_TEST_SUITE_P(Kinds, LongDocument,
                         testing::Values("A line of text.\n", "no line end at all ",
                                         "\u00e4\u00f6\u00fc\u4e2d\u6587", "\U0001f600",
                                         "x\U0001f600\n", "\n- a list\n"));

TEST_F(TextStreamTest, ASeparatorAcrossTheEndOfAPieceIsStillFound) {
  for (int64_t shift = -15; shift <= 3; ++shift) {
    const auto n = static_cast<size_t>(static_cast<int64_t>(TextStream::kPieceBytes) + shift);
    const std::string text = spelled(std::string(n, 'a') + kSeparator + "b");
    EXPECT_TRUE(text == "^" + std::string(n, 'a') + "^b") << "shift " << shift;
  }
}

TEST_F(TextStreamTest, MissingFilesAndFoldersAreErrors) {
  expect_error([&] { TextStream(dir.path() / "none.txt", bare, ""); },
               {"none.txt: cannot be read"});
  expect_error([&] { TextStream(dir.path(), bare, ""); }, {"is a folder"});
}

}  // namespace
}  // namespace sluice::impl::test
