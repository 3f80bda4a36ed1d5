// Text from a prompt, token by token.

#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/linear_work.h"
#include "model/model.h"
#include "model/sampler.h"
#include "plan/plan.h"

namespace sluice::impl {

// Long prompts go through the model in pieces, so that memory for activations stays bounded.
inline constexpr int64_t kPrefillTokens = 1024;

struct GenerateOptions {
  int64_t n_predict = 128;
  SamplerOptions sampler = {};
  std::vector<std::string> stop = {};  // the answer ends before the first of these
  bool ignore_eos = false;
  std::vector<int32_t> end_ids = {};  // tokens that end the answer as the model's end token does
  Plan plan = {};                     // dense where it has no layers
  // Runs the last of `tokens` after the others, which the cache has, and writes the scores of what
  // follows, (1, vocab) f32, in place of Model::forward() and Model::logits().
  std::function<void(std::span<const int32_t> tokens, KvCache& cache, const Tensor& scores)> step =
      {};
  // Called for every pass over the prompt, outside of prefill_seconds: the hidden states, (n_rows,
  // d_model), of its tokens from `first` on.
  std::function<void(std::span<const int32_t> prompt, int64_t first, const ConstTensor& hidden)>
      prompt_pass = {};
  // Called for every token of the answer after its text; false ends the answer there.
  std::function<bool(int32_t token)> go_on = {};
  // Asked before every pass over the prompt; true ends the answer there.
  std::function<bool()> cancelled = {};
};

struct GenerateResult {
  enum class End { kLength, kEos, kStopString, kContextFull, kCallback };
  End end = End::kLength;
  std::vector<int32_t> tokens;  // of the answer, without the end token
  int64_t n_prompt = 0;         // tokens that were read before it
  double prefill_seconds = 0;
  double decode_seconds = 0;  // of all tokens after the first
  CacheMemory cache;          // at the end
  LinearWork linear;
};

// Throws Error for one that is empty.
void check_stop_strings(std::span<const std::string> stop);

// Ids of a prompt with what the tokenizer's template adds; of an empty one, a token to start from.
// Throws Error where there is none.
std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, std::string_view prompt);

// What is continued. A cache that has the first tokens of a text is the caller's, and grows with
// the answer; without one, an answer has its own.
struct Prompt {
  std::vector<int32_t> tokens;
  KvCache* cache = nullptr;  // has the first of the tokens, not all of them
};

// `emit` is called with the answer piece by piece, whole characters only; first an empty piece,
// once the prompt is accepted.
GenerateResult generate(Model& model, const Tokenizer& tokenizer, Prompt prompt,
                        const GenerateOptions& options,
                        const std::function<void(std::string_view)>& emit);
GenerateResult generate(Model& model, const Tokenizer& tokenizer, std::string_view prompt,
                        const GenerateOptions& options,
                        const std::function<void(std::string_view)>& emit);

// Of a divided model: figures become those of all ranks together, times those of the last, which
// has the scores. What every rank of a tensor split has or decides alike counts once, as in one
// process. All ranks call it.
void combine(const Model& model, GenerateResult& result);

// Passes text on until one of the stop strings appears, and holds back what may be the beginning
// of one.
class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  std::string push(std::string_view text);
  std::string finish() { return stopped_ ? "" : std::exchange(held_, {}); }
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace sluice::impl
