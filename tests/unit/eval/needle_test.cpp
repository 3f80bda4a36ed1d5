// Prompts with a needle: their length, the needle's place, and the answer.

#include "eval/needle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "unit/model/byte_tokenizer.h"

namespace sluice::test {
namespace {

constexpr int32_t kMark = 256;

class Needle : public testing::Test {
 protected:
  static std::string text_of(std::span<const int32_t> ids) {
    std::string text;
    for (const int32_t id : ids) text += id == kMark ? '^' : static_cast<char>(id);
    return text;
  }
  // Documents without a sentence end, so that the needle is exactly at its depth.
  static std::vector<int32_t> plain_text(size_t n) {
    std::vector<int32_t> tokens(n, 'x');
    tokens[0] = kMark;
    return tokens;
  }
  static size_t needle_at(const std::string& text, const std::string& answer) {
    return text.find(" The pass key of the archive is " + answer + ". Remember it. " + answer);
  }

  const ByteTokenizer tokenizer{{.first_byte = 0, .vocab = 256, .bos = kMark, .eos = {}}};
};

TEST_F(Needle, LengthIsExactAndTheAnswerIsLast) {
  const std::vector<int32_t> haystack = plain_text(1000);
  for (const int64_t context : {200, 500, 1000})
    for (const double depth : {0.0, 0.3, 1.0}) {
      const NeedlePrompt prompt =
          make_needle(tokenizer, haystack, {.context = context, .depth = depth, .seed = 1});
      ASSERT_EQ(std::ssize(prompt.tokens), context);
      const std::string text = text_of(prompt.tokens);
      const auto n = static_cast<size_t>(prompt.n_prompt);
      EXPECT_EQ(text.substr(n), " " + prompt.answer);
      EXPECT_TRUE(text.substr(0, n).ends_with("archive? The pass key of the archive is"));
      EXPECT_EQ(prompt.answer.size(), 5u);
      EXPECT_NE(needle_at(text, prompt.answer), text.npos);
    }
}

TEST_F(Needle, StandsAtItsDepthOfTheHaystack) {
  const std::vector<int32_t> haystack = plain_text(4000);
  for (const double depth : {0.25, 0.5, 0.9, 1.0}) {
    const NeedlePrompt prompt =
        make_needle(tokenizer, haystack, {.context = 4000, .depth = depth, .seed = 3});
    const std::string text = text_of(prompt.tokens);
    // The haystack is its first token and every x: neither needle nor question has one.
    const auto n_hay = std::count(text.begin(), text.end(), 'x') + 1;
    EXPECT_NEAR(static_cast<double>(needle_at(text, prompt.answer)),
                depth * static_cast<double>(n_hay), 1.0);
  }
}

TEST_F(Needle, StaysBehindTheFirstTokenOfTheText) {
  const NeedlePrompt prompt =
      make_needle(tokenizer, plain_text(500), {.context = 500, .depth = 0, .seed = 3});
  EXPECT_EQ(needle_at(text_of(prompt.tokens), prompt.answer), 1u);
}

TEST_F(Needle, MovesToTheNearestSentenceEnd) {
  const auto place_with = [&](size_t end, int32_t mark) {
    std::vector<int32_t> haystack = plain_text(2000);
    haystack[end] = mark;
    const NeedlePrompt prompt =
        make_needle(tokenizer, haystack, {.context = 2000, .depth = 0.5, .seed = 0});
    return needle_at(text_of(prompt.tokens), prompt.answer);
  };
  const size_t exact = place_with(1999, 'x');
  for (const int32_t mark : {'.', '!', '?', '\n'}) {
    EXPECT_EQ(place_with(exact - 30, mark), exact - 29);
    EXPECT_EQ(place_with(exact + 40, mark), exact + 41);
  }
  EXPECT_EQ(place_with(exact - 100, '.'), exact);
}

TEST_F(Needle, TheSeedChoosesTheNumberAndNothingElse) {
  const std::vector<int32_t> haystack = plain_text(600);
  const auto make = [&](uint64_t seed) {
    return make_needle(tokenizer, haystack, {.context = 600, .depth = 0.5, .seed = seed});
  };
  EXPECT_EQ(make(7).tokens, make(7).tokens);
  EXPECT_NE(make(7).answer, make(8).answer);
  EXPECT_EQ(make(7).n_prompt, make(8).n_prompt);
}

TEST_F(Needle, TheAnswerIsWhatATokenizerPutsBehindTheQuestion) {
  // Of a tokenizer that has words, the space belongs to the number's first token.
  for (const char* name : {"gpt2", "llama2"}) {
    const auto golden =
        open_tokenizer(std::filesystem::path(SLUICE_GOLDEN_DIR) / "tokenizers" / name);
    const std::vector<int32_t> haystack(400, golden->encode("the", false).front());
    const NeedlePrompt prompt =
        make_needle(*golden, haystack, {.context = 400, .depth = 0.5, .seed = 5});
    EXPECT_EQ(std::ssize(prompt.tokens), 400) << name;
    const std::string text = golden->decode(prompt.tokens, true);
    EXPECT_TRUE(text.ends_with("archive is " + prompt.answer)) << name << ": " << text;
    EXPECT_LT(prompt.n_prompt, 400) << name;
  }
}

TEST_F(Needle, RefusesWhatHasNoRoom) {
  const std::vector<int32_t> haystack = plain_text(1000);
  EXPECT_THROW(make_needle(tokenizer, haystack, {.context = 60, .depth = 0.5, .seed = 0}), Error);
  EXPECT_THROW(make_needle(tokenizer, haystack, {.context = 3000, .depth = 0.5, .seed = 0}), Error);
}

}  // namespace
}  // namespace sluice::test
