#include "cli/options/chat_option.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "model/conversation.h"

namespace sluice::impl::cli {

void add_chat_options(CLI::App& command, ChatFlags& flags) {
  std::vector<std::string> names{"auto", "none"};
  for (const ChatFormat format : kChatFormats) names.emplace_back(chat_format_name(format));
  command
      .add_option("--chat-format", flags.format,
                  "How messages are written: auto recognises the model's chat template; none\n"
                  "takes a prompt as it is; or " +
                      chat_format_names())
      ->check(CLI::IsMember(names).description(""))
      ->type_name("NAME")
      ->capture_default_str();
  command
      .add_option("--system", flags.system,
                  "The system's message, before the first of the user; without it the template's\n"
                  "own, where it has one")
      ->type_name("TEXT");
}

std::string ChatChoice::name() const {
  return style ? std::string(chat_format_name(style->format)) : "none";
}

std::vector<int32_t> ChatChoice::tokens_of(const Tokenizer& tokenizer,
                                           const std::string& prompt) const {
  if (!style) return prompt_tokens(tokenizer, prompt);
  std::vector<ChatMessage> messages;
  if (!system.empty()) messages.push_back({.role = ChatRole::kSystem, .text = system});
  messages.push_back({.role = ChatRole::kUser, .text = prompt});
  return encode_chat(tokenizer, *style, messages);
}

void ChatChoice::end_answers(const Tokenizer& tokenizer, GenerateOptions& options) const {
  if (!style) return;
  impl::end_answers(chat_ends(tokenizer, *style), options);
}

ChatChoice choose_chat(const ChatFlags& flags, const Checkpoint& checkpoint,
                       const Tokenizer& tokenizer) {
  ChatChoice choice{.style = {}, .system = flags.system};
  const ChatTokens tokens = chat_tokens(tokenizer);
  const std::optional<std::string> text = chat_template_of(checkpoint);
  choice.has_template = text.has_value();
  choice.asked = flags.format != "auto";
  const std::optional<ChatFormat> named = chat_format_named(flags.format);
  if (text && flags.format != "none") choice.style = recognise_chat(*text, tokens);
  if (named && choice.style && choice.style->format != *named) choice.style.reset();
  choice.from_template = choice.style.has_value();
  if (named && !choice.style) choice.style = chat_style(*named, tokens);
  if (!choice.style && !flags.system.empty())
    throw CLI::ValidationError(
        "--system needs a chat format, and there is none here, give one with "
        "--chat-format: " +
        chat_format_names());
  return choice;
}

std::string chat_note(const ChatChoice& choice) {
  if (choice.style)
    return fmt::format(
        "the prompt is a user message in chat format {}{} (--chat-format none takes "
        "it as it is)",
        choice.name(), choice.from_template ? ", the model's own" : "");
  if (!choice.has_template || choice.asked) return "";
  return fmt::format(
      "the model's chat template is of no known format, and the prompt is taken as it is "
      "(--chat-format NAME writes "
      "it as a message: {})",
      chat_format_names());
}

nlohmann::json describe_chat(const ChatChoice& choice) {
  if (!choice.style) return nlohmann::json::object();
  nlohmann::json settings = {{"chat_format", choice.name()}};
  if (!choice.system.empty()) settings["system"] = choice.system;
  return settings;
}

std::string no_answer_hint(const ChatChoice& choice) {
  if (choice.style) return "another question, another --chat-format, or --ignore-eos to go on";
  if (choice.has_template)
    return "it is made for conversations: leave --chat-format out, or give the format by name";
  return "a longer prompt, --ignore-eos to go on, or for an instruct model --chat-format NAME";
}

}  // namespace sluice::impl::cli
