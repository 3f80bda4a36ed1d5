#include "sluice/chat.h"

#include "api/generate_options.h"
#include "api/state.h"
#include "io/chat/chat.h"
#include "model/checkpoint.h"
#include "model/conversation.h"

namespace sluice {
namespace {

std::optional<impl::ChatStyle> own_style(const Model::State& state) {
  const impl::ChatTokens tokens = impl::chat_tokens(state.tokenizer());
  const auto text =
      impl::api::with_files([&] { return impl::chat_template_of(*state.checkpoint); });
  return text ? impl::recognise_chat(*text, tokens) : std::nullopt;
}

impl::ChatStyle style_of(const Model::State& state, const std::string& format) {
  std::optional<impl::ChatStyle> own = own_style(state);
  if (format.empty()) {
    if (own) return *std::move(own);
    throw Error("this model has no chat template of a known format",
                "name one: " + impl::chat_format_names());
  }
  const auto named = impl::chat_format_named(format);
  if (!named)
    throw Error("there is no chat format of this name", "one of " + impl::chat_format_names());
  if (own && own->format == *named) return *std::move(own);
  return impl::chat_style(*named, impl::chat_tokens(state.tokenizer()));
}

std::vector<impl::ChatMessage> messages_of(std::span<const Message> messages) {
  std::vector<impl::ChatMessage> out;
  for (const Message& message : messages)
    out.push_back({.role = message.role == Role::kSystem ? impl::ChatRole::kSystem
                           : message.role == Role::kUser ? impl::ChatRole::kUser
                                                         : impl::ChatRole::kAssistant,
                   .text = message.text});
  return out;
}

}  // namespace

std::string chat_format(const Model& model) {
  const auto style = own_style(*Access::of(model));
  return style ? std::string(impl::chat_format_name(style->format)) : std::string();
}

std::string render_chat(const Model& model, std::span<const Message> messages,
                        const std::string& format) {
  const impl::ChatStyle style = style_of(*Access::of(model), format);
  return impl::joined(impl::render_chat(style, messages_of(messages)));
}

std::vector<int32_t> tokenize_chat(const Model& model, std::span<const Message> messages,
                                   const std::string& format) {
  const Model::State& state = *Access::of(model);
  return impl::encode_chat(state.tokenizer(), style_of(state, format), messages_of(messages));
}

GenerateResult chat(Model& model, std::span<const Message> messages, const GenerateOptions& options,
                    const std::string& format) {
  Model::State& state = *Access::of(model);
  const impl::Tokenizer& tokenizer = state.tokenizer();
  state.check_logits();
  impl::GenerateOptions wanted = impl::api::wanted_of(options);
  const impl::ChatStyle style = style_of(state, format);
  impl::end_answers(impl::chat_ends(tokenizer, style), wanted);
  return impl::api::run_generate(state, impl::encode_chat(tokenizer, style, messages_of(messages)),
                                 std::move(wanted), options);
}

}  // namespace sluice
