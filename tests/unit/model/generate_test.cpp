// Stop strings, and whole generations of a golden model over a vocabulary of bytes.

#include "model/generate.h"

#include <gtest/gtest.h>

#include "unit/model/byte_tokenizer.h"
#include "unit/model/golden_models.h"
#include "unit/test_files.h"

namespace sluice::impl::test {
namespace {

using End = GenerateResult::End;

// Everything a filter lets through when the text arrives in these pieces.
std::string filtered(const std::vector<std::string>& stops, const std::vector<std::string>& pieces,
                     bool* stopped = nullptr) {
  StopFilter filter(stops);
  std::string out;
  for (const std::string& piece : pieces) out += filter.push(piece);
  out += filter.finish();
  if (stopped != nullptr) *stopped = filter.stopped();
  return out;
}

// The text cut at every set of places, one bit of `cuts` for each.
std::vector<std::string> cut(const std::string& text, uint32_t cuts) {
  std::vector<std::string> pieces(1);
  for (size_t i = 0; i < text.size(); ++i) {
    if (i > 0 && (cuts >> (i - 1) & 1u) != 0) pieces.emplace_back();
    pieces.back() += text[i];
  }
  return pieces;
}

TEST(StopFilter, EverySplitOfTheTextGivesTheSameAnswer) {
  struct Case {
    std::vector<std::string> stops;
    std::string text, expected;
    bool stopped;
  };
  const Case cases[] = {
      {{"END"}, "some ENDtext", "some ", true},
      {{"END"}, "EN END", "EN ", true},
      {{"END"}, "ENENENDEND", "ENEN", true},
      {{"END"}, "almost EN", "almost EN", false},
      {{"END"}, "END", "", true},
      {{"aab"}, "aaaab!", "aa", true},
      {{"abab"}, "aababab", "a", true},
      {{}, "nothing stops", "nothing stops", false},
      {{"x", "longer"}, "a longer x", "a ", true},
      // Overlapping: the stop string that is complete first counts, whichever began earlier.
      {{"b", "abc"}, "zabcd", "za", true},
      {{"abcd", "bc"}, "zabcd", "za", true},
      {{"bc", "abc"}, "zabcd", "z", true},
      {{"abcde", "cd"}, "xabcx cd", "xabcx ", true},
  };
  for (const Case& c : cases)
    for (uint32_t cuts = 0; cuts < (1u << (c.text.size() - 1)); ++cuts) {
      bool stopped = false;
      ASSERT_EQ(filtered(c.stops, cut(c.text, cuts), &stopped), c.expected)
          << c.text << ", cuts " << cuts;
      ASSERT_EQ(stopped, c.stopped);
    }
}

TEST(StopFilter, HoldsBackOnlyWhatMayBecomeAStopString) {
  StopFilter filter({"\n\nQ:", "END"});
  EXPECT_EQ(filter.push("line\n"), "line");
  EXPECT_EQ(filter.push("next E"), "\nnext ");
  EXPECT_EQ(filter.push("ach"), "Each");
  EXPECT_EQ(filter.push("\n\nQ"), "");
  EXPECT_FALSE(filter.stopped());
  EXPECT_EQ(filter.push(": more"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.push("after"), "");
  EXPECT_EQ(filter.finish(), "");
}

// GPT-2's golden checkpoint has 64 tokens and 40 positions: bytes from the space on, the last id
// being its end of text.
class Generate : public testing::Test {
 protected:
  GenerateResult run(std::string_view prompt, const GenerateOptions& options) {
    text.clear();
    return generate(model, tokenizer, prompt, options,
                    [&](std::string_view piece) { text += piece; });
  }

  Model model = load(golden_model("models/gpt2"), {"cpu", DType::kF32});
  const ByteTokenizer tokenizer{{.first_byte = 32, .vocab = 64, .bos = {}, .eos = 63}};
  std::string text;
};

TEST_F(Generate, GreedyAnswersAreTheLikeliestTokensOneByOne) {
  const auto result =
      run("HELLO", {.n_predict = 20, .sampler = {}, .stop = {}, .ignore_eos = true});
  EXPECT_EQ(result.end, End::kLength);
  EXPECT_EQ(result.n_prompt, 5);
  ASSERT_EQ(result.tokens.size(), 20u);
  EXPECT_EQ(text, tokenizer.decode(result.tokens, true));

  auto tokens = tokenizer.encode("HELLO", false);
  for (const int32_t token : result.tokens) {  // each from the whole text before it
    KvCache cache = model.make_cache();
    const auto logits = logits_of(model, tokens, cache);
    const auto last = logits.end() - model.spec().vocab;
    EXPECT_EQ(token, std::max_element(last, logits.end()) - last);
    tokens.push_back(token);
  }
}

TEST_F(Generate, EndsBeforeAStopString) {
  run("HELLO", {.n_predict = 20, .sampler = {}, .stop = {}, .ignore_eos = true});
  const std::string whole = text;
  const std::string stop = whole.substr(7, 3);
  const auto result =
      run("HELLO", {.n_predict = 20, .sampler = {}, .stop = {"~~", stop}, .ignore_eos = true});
  EXPECT_EQ(result.end, End::kStopString);
  EXPECT_EQ(text, whole.substr(0, whole.find(stop)));
  EXPECT_LT(result.tokens.size(), 20u);
}

TEST_F(Generate, EndsWhenTheContextIsFull) {
  const auto result =
      run(std::string(38, 'A'), {.n_predict = 20, .sampler = {}, .stop = {}, .ignore_eos = true});
  EXPECT_EQ(result.end, End::kContextFull);
  // Two more positions hold tokens, and a third token is known from the last of them.
  EXPECT_EQ(result.tokens.size(), 3u);
}

TEST_F(Generate, EndsAtTheEndTokenUnlessToldToGoOn) {
  // At this temperature all tokens are nearly alike; some seed draws the end among 30 of them.
  GenerateOptions options{.n_predict = 30, .sampler = {.temperature = 100}, .stop = {}};
  GenerateResult result;
  for (options.sampler.seed = 0; options.sampler.seed < 40; ++options.sampler.seed) {
    result = run("AB", options);
    if (result.end == End::kEos && !result.tokens.empty()) break;
  }
  ASSERT_EQ(result.end, End::kEos);
  EXPECT_EQ(std::count(result.tokens.begin(), result.tokens.end(), 63), 0);
  options.ignore_eos = true;
  const auto longer = run("AB", options);
  EXPECT_EQ(longer.end, End::kLength);
  ASSERT_EQ(longer.tokens.size(), 30u);
  EXPECT_TRUE(std::equal(result.tokens.begin(), result.tokens.end(), longer.tokens.begin()));
  EXPECT_EQ(longer.tokens[result.tokens.size()], 63);
}

TEST_F(Generate, PredictingNothingSaysNothing) {
  const auto result = run("HELLO", {.n_predict = 0, .sampler = {}, .stop = {}});
  EXPECT_EQ(result.end, End::kLength);
  EXPECT_TRUE(result.tokens.empty());
  EXPECT_EQ(text, "");
}

TEST_F(Generate, AnEmptyPromptStartsFromTheEndToken) {
  EXPECT_EQ(run("", {.n_predict = 1, .sampler = {}, .stop = {}}).n_prompt, 1);
  const ByteTokenizer bare{{.first_byte = 32, .vocab = 64}};
  expect_error(
      [&] { generate(model, bare, "", {.n_predict = 1, .sampler = {}, .stop = {}}, [](auto) {}); },
      {"the prompt is empty"});
}

TEST_F(Generate, RefusesWhatItCannotDo) {
  expect_error([&] { run(std::string(40, 'A'), {.sampler = {}, .stop = {}}); },
               {"the prompt has 40 tokens, the context is 40"});
  EXPECT_THROW(run("A", {.sampler = {}, .stop = {"x", ""}}), Error);
  EXPECT_THROW(run("A", {.sampler = {.temperature = -1}, .stop = {}}), Error);
  Model encoder = load(golden_model("models/bert"), {"cpu", DType::kF32});
  expect_error([&] { generate(encoder, tokenizer, "A", {.sampler = {}, .stop = {}}, [](auto) {}); },
               {"is an encoder"});
}

}  // namespace
}  // namespace sluice::impl::test
