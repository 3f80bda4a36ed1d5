// Prompts with a needle: their length, the needle's place, and the answer.

#include "eval/needle/needle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "paths.h"
#include "unit/model/byte_tokenizer.h"

namespace sluice::impl::test {
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
    const auto golden = open_tokenizer(test::golden_dir() / "tokenizers" / name);
    const std::vector<int32_t> haystack(400, golden->encode("the", false).front());
    const NeedlePrompt prompt =
        make_needle(*golden, haystack, {.context = 400, .depth = 0.5, .seed = 5});
    EXPECT_EQ(std::ssize(prompt.tokens), 400) << name;
    const std::string text = golden->decode(prompt.tokens, true);
    EXPECT_TRUE(text.ends_with("archive is " + prompt.answer)) << name << ": " << text;
    EXPECT_LT(prompt.n_prompt, 400) << name;
  }
}

// Prompts of every task: as long as asked for, every fact in the order of its depth, the answer at
// the end and nowhere else, the same by the same seed.
TEST_F(Needle, EveryTaskHidesItsFactsAndAsksForThem) {
  const std::vector<int32_t> haystack = plain_text(5000);
  for (const NeedleTask task :
       {NeedleTask::kNeedle, NeedleTask::kKeys, NeedleTask::kVariables, NeedleTask::kWords})
    for (const double depth : {0.0, 0.3, 1.0}) {
      SCOPED_TRACE(testing::Message() << task_name(task) << " at " << depth);
      EXPECT_EQ(task_of(task_name(task)), task);
      const NeedleOptions options{.context = 5000, .depth = depth, .seed = 9, .task = task};
      const NeedlePrompt prompt = make_needle(tokenizer, haystack, options);
      const NeedleQuestion asked = make_question(task, depth, 9);
      const std::string text = text_of(prompt.tokens);
      ASSERT_EQ(text.size(), 5000u);
      EXPECT_EQ(prompt.answer, asked.answer);
      EXPECT_TRUE(text.ends_with(asked.question + " " + asked.answer));
      EXPECT_EQ(text.substr(static_cast<size_t>(prompt.n_prompt)), " " + asked.answer);
      size_t at = 0;
      for (const HiddenFact& fact : asked.facts) {
        const size_t found = text.find(fact.text, at);
        ASSERT_NE(found, text.npos) << fact.text;
        at = found + fact.text.size();
      }
      EXPECT_EQ(make_needle(tokenizer, haystack, options).tokens, prompt.tokens);
    }
}

TEST_F(Needle, KeysVariablesAndWordsHaveOneAnswer) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const NeedleQuestion keys = make_question(NeedleTask::kKeys, 0.5, seed);
    EXPECT_EQ(keys.facts.size(), 8u);
    EXPECT_EQ(std::count_if(keys.facts.begin(), keys.facts.end(),
                            [&](const HiddenFact& fact) {
                              return fact.text.find(keys.answer) != std::string::npos;
                            }),
              1);
    // Every name is assigned once; the last is that of the last fact.
    const NeedleQuestion variables = make_question(NeedleTask::kVariables, 0.2, seed);
    ASSERT_EQ(variables.facts.size(), 4u);
    for (size_t i = 0; i < 4; ++i)
      EXPECT_TRUE(variables.facts[i].text.starts_with(" VAR " + variables.answer.substr(4 * i, 3)));
    const NeedleQuestion words = make_question(NeedleTask::kWords, 0.5, seed);
    std::string all;
    for (const HiddenFact& fact : words.facts) all += fact.text;
    const auto count = [&](const std::string& word) {
      int n = 0;
      for (size_t at = all.find(word); at != all.npos; at = all.find(word, at + 1)) ++n;
      return n;
    };
    const size_t first = words.answer.find(' '), second = words.answer.find(' ', first + 1);
    EXPECT_EQ(count(words.answer.substr(0, first)), 14);
    EXPECT_EQ(count(words.answer.substr(first + 1, second - first - 1)), 10);
    EXPECT_EQ(count(words.answer.substr(second + 1)), 7);
  }
}

TEST_F(Needle, RefusesWhatHasNoRoom) {
  const std::vector<int32_t> haystack = plain_text(1000);
  EXPECT_THROW(make_needle(tokenizer, haystack, {.context = 60, .depth = 0.5, .seed = 0}), Error);
  EXPECT_THROW(make_needle(tokenizer, haystack, {.context = 3000, .depth = 0.5, .seed = 0}), Error);
}

}  // namespace
}  // namespace sluice::impl::test
