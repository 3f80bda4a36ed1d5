// A conversation with an instruct model: messages and answers in one cache, so that a round reads
// its own message alone.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/chat/chat.h"
#include "model/generate.h"

namespace sluice::impl {

// Answers end where the format ends them, unless options.ignore_eos.
void end_answers(const ChatEnds& ends, GenerateOptions& options);

class Conversation {
 public:
  struct Setup {
    ChatStyle style;
    std::string system = {};  // empty: the style's own, if it has one
    Plan plan = {};           // dense where it has no layers
  };

  // Model and tokenizer must outlive it. The cache has room for the model's context. Throws Error
  // for a model that does not continue text.
  Conversation(Model& model, const Tokenizer& tokenizer, Setup setup);

  // Reads a user message and answers it. What ends an answer is the format's as well as the
  // options'; options.plan is not looked at. Throws Error, and changes nothing, where the message
  // does not fit the context. After another exception the conversation is empty.
  GenerateResult answer(std::string_view text, GenerateOptions options,
                        const std::function<void(std::string_view)>& emit);
  void reset();  // forgets everything but the system's message

  std::span<const ChatMessage> messages() const { return messages_; }
  int64_t n_tokens() const { return std::ssize(tokens_); }
  const KvCache& cache() const { return cache_; }

 private:
  KvCache make_cache() const;

  Model& model_;
  const Tokenizer& tokenizer_;
  Setup setup_;
  ChatEnds ends_;
  std::vector<ChatMessage> messages_;
  std::vector<int32_t> tokens_;  // the cache has all of them, but for the last few
  KvCache cache_;
};

}  // namespace sluice::impl
