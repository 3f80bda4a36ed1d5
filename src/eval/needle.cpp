#include "eval/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "core/error.h"
#include "eval/token_text.h"

namespace sluice {
namespace {

// Of the wordings tried with a model of 135 million parameters, the one that it answers most often
// at 4096 and 8192 tokens. The number stands there twice, side by side.
constexpr std::string_view kFact = "The pass key of the archive is";
constexpr std::string_view kAgain = "is the pass key of the archive.";
constexpr std::string_view kQuestion = "What is the pass key of the archive?";

// The needle moves at most this far from its depth to a sentence end: a few sentences, and a small
// part of a short haystack.
constexpr int64_t kMostShift = 64;
constexpr int64_t kShiftShare = 16;

// Five digits. The same on every machine: distributions of the standard library are not.
std::string number_of(uint64_t seed) {
  return std::to_string(10000 + std::mt19937_64(seed)() % 90000);
}

bool ends_sentence(const std::string& token) {
  return token.ends_with('.') || token.ends_with('!') || token.ends_with('?') ||
         token.ends_with('\n');
}

// Tokens of the haystack before the needle: those before its depth, or up to the nearest sentence
// end. A special token at the text's beginning stays first.
int64_t place(const Tokenizer& tokenizer, std::span<const int32_t> haystack, double depth) {
  const int64_t n = std::ssize(haystack);
  const int64_t first = tokenizer.is_special(haystack[0]) ? 1 : 0;
  const auto wanted = std::max(first, static_cast<int64_t>(depth * static_cast<double>(n)));
  for (int64_t shift = 0; shift <= std::min(kMostShift, n / kShiftShare); ++shift)
    for (const int64_t at : {wanted - shift, wanted + shift})
      if (at > first && at <= n &&
          ends_sentence(token_text(tokenizer, haystack[static_cast<size_t>(at - 1)])))
        return at;
  return wanted;
}

}  // namespace

NeedlePrompt make_needle(const Tokenizer& tokenizer, std::span<const int32_t> haystack,
                         const NeedleOptions& options) {
  SLUICE_CHECK(options.depth >= 0 && options.depth <= 1);
  const std::string number = number_of(options.seed);
  const auto encode = [&](const std::string& text) {
    return tokenizer.encode(text, /*add_special=*/false);
  };
  const std::vector<int32_t> needle =
      encode(fmt::format(" {0} {1}. Remember it. {1} {2}", kFact, number, kAgain));
  const std::string question = fmt::format("\n\n{} {}", kQuestion, kFact);
  // The answer's tokens are those that it has behind the question.
  const std::vector<int32_t> asked = encode(question);
  const std::vector<int32_t> answered = encode(question + " " + number);
  const auto n_asked =
      std::mismatch(asked.begin(), asked.end(), answered.begin(), answered.end()).second -
      answered.begin();
  const int64_t n_hay = options.context - std::ssize(needle) - std::ssize(answered);
  if (n_hay < 1)
    throw Error(fmt::format("a context of {} tokens has no room for a needle and its question, {} "
                            "tokens",
                            options.context, std::ssize(needle) + std::ssize(answered)),
                "a larger --context");
  if (n_hay > std::ssize(haystack))
    throw Error(fmt::format("the text has {} tokens, {} are needed for a context of {}",
                            haystack.size(), n_hay, options.context),
                "a longer text, or a smaller --context");
  haystack = haystack.first(static_cast<size_t>(n_hay));
  const auto before = static_cast<size_t>(place(tokenizer, haystack, options.depth));
  NeedlePrompt prompt;
  const auto append = [&](std::span<const int32_t> part) {
    prompt.tokens.insert(prompt.tokens.end(), part.begin(), part.end());
  };
  append(haystack.first(before));
  append(needle);
  append(haystack.subspan(before));
  append(answered);
  prompt.n_prompt = options.context - (std::ssize(answered) - n_asked);
  prompt.answer = number;
  return prompt;
}

}  // namespace sluice
