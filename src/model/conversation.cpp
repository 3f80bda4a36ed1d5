#include "model/conversation.h"

#include <fmt/format.h>

#include "core/error.h"
#include "model/answer.h"

namespace sluice::impl {

void end_answers(const ChatEnds& ends, GenerateOptions& options) {
  options.end_ids.insert(options.end_ids.end(), ends.ids.begin(), ends.ids.end());
  if (!options.ignore_eos)
    options.stop.insert(options.stop.end(), ends.texts.begin(), ends.texts.end());
}

Conversation::Conversation(Model& model, const Tokenizer& tokenizer, Setup setup)
    : model_(model),
      tokenizer_(tokenizer),
      setup_(std::move(setup)),
      ends_(chat_ends(tokenizer, setup_.style)),
      cache_(make_cache()) {
  reset();
}

KvCache Conversation::make_cache() const {
  check_continues(model_);
  return model_.make_cache(1, model_.context(), setup_.plan.attention, setup_.plan.linear);
}

void Conversation::reset() {
  messages_.clear();
  if (!setup_.system.empty())
    messages_.push_back({.role = ChatRole::kSystem, .text = setup_.system});
  tokens_.clear();
  cache_.truncate(0);
  cache_.set_delta_factor(1);
}

GenerateResult Conversation::answer(std::string_view text, GenerateOptions options,
                                    const std::function<void(std::string_view)>& emit) {
  const ChatMessage message{.role = ChatRole::kUser, .text = std::string(text)};
  std::vector<int32_t> prompt = tokens_;
  if (prompt.empty()) {
    std::vector<ChatMessage> first = messages_;
    first.push_back(message);
    prompt = encode_chat(tokenizer_, setup_.style, first);
  } else {
    const std::vector<int32_t> next = encode_next(tokenizer_, setup_.style, text);
    prompt.insert(prompt.end(), next.begin(), next.end());
  }
  if (std::ssize(prompt) >= model_.context())
    throw Error(fmt::format("the context of {} tokens is full: {} are in use, and the message "
                            "takes {}",
                            model_.context(), n_tokens(), std::ssize(prompt) - n_tokens()),
                "/reset begins anew, -c N has room for more");
  end_answers(ends_, options);
  std::string said;
  const auto keep_and_emit = [&](std::string_view piece) {
    said += piece;
    emit(piece);
  };
  tokens_ = std::move(prompt);
  try {
    GenerateResult result =
        generate(model_, tokenizer_, {.tokens = tokens_, .cache = &cache_}, options, keep_and_emit);
    tokens_.insert(tokens_.end(), result.tokens.begin(), result.tokens.end());
    messages_.push_back(message);
    messages_.push_back({.role = ChatRole::kAssistant, .text = std::move(said)});
    return result;
  } catch (...) {
    reset();
    throw;
  }
}

}  // namespace sluice::impl
