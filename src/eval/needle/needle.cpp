#include "eval/needle/needle.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "eval/text/token_text.h"

namespace sluice::impl {
namespace {

// A fact moves at most this far from its depth to a sentence end: a few sentences, and a small
// part of a short haystack.
constexpr int64_t kMostShift = 64;
constexpr int64_t kShiftShare = 16;

bool ends_sentence(const std::string& token) {
  return token.ends_with('.') || token.ends_with('!') || token.ends_with('?') ||
         token.ends_with('\n');
}

// Tokens of the haystack before a fact: those before its depth, or up to the nearest sentence
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
  const NeedleQuestion made = make_question(options.task, options.depth, options.seed);
  const auto encode = [&](const std::string& text) {
    return tokenizer.encode(text, /*add_special=*/false);
  };
  std::vector<std::vector<int32_t>> facts;
  int64_t n_facts = 0;
  for (const HiddenFact& fact : made.facts)
    n_facts += std::ssize(facts.emplace_back(encode(fact.text)));
  // The answer's tokens are those that it has behind the question.
  const std::vector<int32_t> asked = encode(made.question);
  const std::vector<int32_t> answered = encode(made.question + " " + made.answer);
  const auto n_asked =
      std::mismatch(asked.begin(), asked.end(), answered.begin(), answered.end()).second -
      answered.begin();
  const int64_t n_hay = options.context - n_facts - std::ssize(answered);
  if (n_hay < 1)
    throw Error(fmt::format("a context of {} tokens has no room for a needle and its question, {} "
                            "tokens",
                            options.context, n_facts + std::ssize(answered)),
                "a larger --context");
  if (n_hay > std::ssize(haystack))
    throw Error(fmt::format("the text has {} tokens, {} are needed for a context of {}",
                            haystack.size(), n_hay, options.context),
                "a longer text, or a smaller --context");
  haystack = haystack.first(static_cast<size_t>(n_hay));
  NeedlePrompt prompt;
  const auto append = [&](std::span<const int32_t> part) {
    prompt.tokens.insert(prompt.tokens.end(), part.begin(), part.end());
  };
  int64_t done = 0;  // tokens of the haystack
  for (size_t i = 0; i < facts.size(); ++i) {
    const int64_t at = std::max(done, place(tokenizer, haystack, made.facts[i].depth));
    append(haystack.subspan(static_cast<size_t>(done), static_cast<size_t>(at - done)));
    append(facts[i]);
    done = at;
  }
  append(haystack.subspan(static_cast<size_t>(done)));
  append(answered);
  prompt.n_prompt = options.context - (std::ssize(answered) - n_asked);
  prompt.answer = made.answer;
  return prompt;
}

}  // namespace sluice::impl
