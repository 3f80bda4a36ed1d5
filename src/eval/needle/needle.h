// Needles in a haystack: facts are put into a long text, and a question behind the text asks for
// them. What a mean of KL does not show, whether a place far back is found, these do.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "eval/needle/needle_task.h"
#include "io/tokenizer/tokenizer.h"

namespace sluice::impl {

struct NeedlePrompt {
  std::vector<int32_t> tokens;  // haystack with the facts, question, then the answer
  int64_t n_prompt = 0;         // tokens before the answer
  std::string answer;           // as text
};

struct NeedleOptions {
  int64_t context = 0;  // tokens in all, answer included
  double depth = 0.5;   // of what is asked for in the haystack, 0 to 1
  uint64_t seed = 0;    // chooses what is hidden
  NeedleTask task = NeedleTask::kNeedle;
};

// haystack: tokens of a text, at least `context` of them; a fact is put behind a sentence or
// line end near its depth where there is one. Throws Error for a context that is too short.
NeedlePrompt make_needle(const Tokenizer& tokenizer, std::span<const int32_t> haystack,
                         const NeedleOptions& options);

}  // namespace sluice::impl
