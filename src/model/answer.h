// One text that is being generated: its tokens, its cache, and when it ends.

#pragma once

#include <optional>

#include "model/generate.h"

namespace sluice::impl {

// Throws Error for a model that does not continue text.
void check_continues(const Model& model);

// Throws Error for a model, a prompt or options that cannot be continued.
void check_prompt(const Model& model, std::span<const int32_t> tokens,
                  const GenerateOptions& options);

class Answer {
 public:
  using Emit = std::function<void(std::string_view)>;

  // Throws Error for a model or a prompt that cannot be continued. options.step, prompt_pass and
  // cancelled are the caller's. Model, tokenizer and a cache of the prompt must outlive the answer.
  // Calls `emit` with an empty piece.
  Answer(Model& model, const Tokenizer& tokenizer, Prompt prompt, GenerateOptions options,
         Emit emit);

  KvCache& cache() { return cache_; }
  std::span<const int32_t> tokens() const { return tokens_; }  // prompt and answer so far
  bool in_prompt() const { return cache_.length() < n_given_; }
  // Tokens of the next pass: the next piece of the prompt, or the last token of the answer.
  std::span<const int32_t> pending() const;

  bool ended() const { return ended_; }
  // The next token by the scores of what follows, which are changed.
  int32_t pick(std::span<float> scores) { return sampler_.pick(scores, tokens_); }
  // Takes it in, and may end.
  void take(int32_t token);
  void cancel() { end(GenerateResult::End::kCallback); }

  // Once, at the end; emits the rest of the text. Times are the caller's.
  GenerateResult finish();

 private:
  void send(const std::string& text);
  void end(GenerateResult::End why);

  const Model& model_;
  GenerateOptions options_;
  Emit emit_;
  Sampler sampler_;
  std::vector<int32_t> tokens_;
  int64_t n_given_;  // tokens of the prompt, those in the cache among them
  GenerateResult result_;
  std::optional<KvCache> own_;
  KvCache& cache_;
  StreamDecoder decoder_;
  StopFilter filter_;
  bool ended_ = false;
};

}  // namespace sluice::impl
