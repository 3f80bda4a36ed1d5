#include <gtest/gtest.h>

#include <chrono>

#include "unit/io/tokenizer/tokenizer_files.h"

namespace sluice::impl {
namespace {

using Ids = std::vector<int32_t>;
using test::small_tokenizer;
using test::TokenizerFolder;

TEST(StreamDecoder, SaysACharacterOnceItIsWhole) {
  const auto tokenizer = TokenizerFolder(small_tokenizer()).open();
  StreamDecoder stream(*tokenizer, false);
  EXPECT_EQ(stream.push(0), "a");
  EXPECT_EQ(stream.push(4), "");
  EXPECT_EQ(stream.push(5), "é");
  EXPECT_EQ(stream.push(4), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(StreamDecoder, LeavesSpecialTokensOutWhenAsked) {
  const auto tokenizer = TokenizerFolder(small_tokenizer()).open();
  StreamDecoder skipping(*tokenizer, true), keeping(*tokenizer, false);
  EXPECT_EQ(skipping.push(7), "");
  EXPECT_EQ(keeping.push(7), "<s>");
}

TEST(StreamDecoder, AnIdOutsideTheVocabularyIsAnError) {
  const auto tokenizer = TokenizerFolder(small_tokenizer()).open();
  StreamDecoder stream(*tokenizer, false);
  test::expect_error([&] { stream.push(1000); }, {"1000"});
  EXPECT_EQ(stream.push(0), "a");  // and the stream goes on
}

// 64 times the ids may take no more than about 64 times as long; a decoder that starts over at
// every id would take 4096 times as long.
TEST(StreamDecoder, APushCostsTheSameHoweverLongTheStream) {
  const auto tokenizer = TokenizerFolder(small_tokenizer()).open();
  const auto seconds = [&](int n) {
    StreamDecoder stream(*tokenizer, false);
    const auto start = std::chrono::steady_clock::now();
    size_t n_bytes = 0;
    for (int i = 0; i < n; ++i) n_bytes += stream.push(i % 3).size();
    EXPECT_EQ(n_bytes, static_cast<size_t>(n));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  seconds(4000);  // warm up
  const double shorter = seconds(4000);
  EXPECT_LT(seconds(256'000), 64 * 8 * shorter + 0.1);
}

// Any Tokenizer can be streamed, if only at the end.
class PlainTokenizer : public Tokenizer {
 public:
  Ids encode(std::string_view, bool) const override { return {}; }
  Ids encode_pieces(const PieceText&) const override { return {}; }
  std::string decode(std::span<const int32_t> ids, bool) const override {
    return std::to_string(ids.size());
  }
  int32_t vocab_size() const override { return 1; }
  std::optional<int32_t> id_of(std::string_view) const override { return {}; }
  std::string token_of(int32_t) const override { return {}; }
  bool is_special(int32_t) const override { return false; }
  std::string_view kind() const override { return "plain"; }
  std::optional<int32_t> bos() const override { return {}; }
  std::optional<int32_t> eos() const override { return {}; }
};

TEST(StreamDecoder, ServesATokenizerWithoutStreams) {
  const PlainTokenizer tokenizer;
  StreamDecoder stream(tokenizer, false);
  EXPECT_EQ(stream.push(0) + stream.push(0), "");
  EXPECT_EQ(stream.finish(), "2");
}

}  // namespace
}  // namespace sluice::impl
