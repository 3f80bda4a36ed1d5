#include "io/chat/chat_style.h"

#include "core/error.h"

namespace sluice::impl {
namespace {

// Roles between the same tokens.
ChatStyle by_role(ChatStyle style, const std::string& open, const std::string& behind_role,
                  const std::string& close) {
  const auto frame = [&](const char* role) {
    return ChatFrame{.open = open + role + behind_role, .close = close};
  };
  style.system = frame("system");
  style.user = frame("user");
  style.answer = frame(style.format == ChatFormat::kGemma ? "model" : "assistant");
  style.ask = style.answer.open;
  return style;
}

ChatStyle llama2(const ChatTokens& tokens) {
  return {.format = ChatFormat::kLlama2,
          .system = {.open = "<<SYS>>\n", .close = "\n<</SYS>>\n\n"},
          .user = {.open = tokens.bos + "[INST] ", .close = " [/INST]"},  // the first token too
          .answer = {.open = " ", .close = " " + tokens.eos},
          .system_in_user = true,
          .trims = true,
          .markers = {"[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"}};
}

ChatStyle mistral(const ChatTokens& tokens) {
  return {.format = ChatFormat::kMistral,
          .first = tokens.bos,
          .system = {.open = "", .close = "\n\n"},
          .user = {.open = "[INST] ", .close = "[/INST]"},
          .answer = {.open = " ", .close = tokens.eos},
          .system_in_user = true,
          .markers = {"[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"}};
}

}  // namespace

std::string_view chat_format_name(ChatFormat format) {
  switch (format) {
    case ChatFormat::kChatMl:
      return "chatml";
    case ChatFormat::kLlama2:
      return "llama2";
    case ChatFormat::kLlama3:
      return "llama3";
    case ChatFormat::kMistral:
      return "mistral";
    case ChatFormat::kGemma:
      return "gemma";
    case ChatFormat::kPhi3:
      return "phi3";
    case ChatFormat::kZephyr:
      return "zephyr";
  }
  SLUICE_CHECK(!"unnamed format");
}

std::optional<ChatFormat> chat_format_named(std::string_view name) {
  for (const ChatFormat format : kChatFormats)
    if (chat_format_name(format) == name) return format;
  return std::nullopt;
}

std::string chat_format_names() {
  std::string names;
  for (const ChatFormat format : kChatFormats)
    names.append(names.empty() ? "" : ", ").append(chat_format_name(format));
  return names;
}

ChatStyle chat_style(ChatFormat format, const ChatTokens& tokens) {
  ChatStyle style{.format = format};
  switch (format) {
    case ChatFormat::kChatMl:
      style.end_tokens = {"<|im_end|>"};
      style.markers = {"<|im_start|>", "<|im_end|>"};
      return by_role(std::move(style), "<|im_start|>", "\n", "<|im_end|>\n");
    case ChatFormat::kLlama2:
      return llama2(tokens);
    case ChatFormat::kLlama3:
      style.first = tokens.bos;
      style.trims = true;
      style.end_tokens = {"<|eot_id|>", "<|eom_id|>"};
      style.markers = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"};
      return by_role(std::move(style), "<|start_header_id|>", "<|end_header_id|>\n\n",
                     "<|eot_id|>");
    case ChatFormat::kMistral:
      return mistral(tokens);
    case ChatFormat::kGemma:
      style.first = tokens.bos;
      style.trims = true;
      style.end_tokens = {"<end_of_turn>"};
      style.markers = {"<start_of_turn>", "<end_of_turn>"};
      style = by_role(std::move(style), "<start_of_turn>", "\n", "<end_of_turn>\n");
      style.system = {.open = "", .close = "\n\n"};
      style.system_in_user = true;
      return style;
    case ChatFormat::kPhi3:
      style.end_tokens = {"<|end|>"};
      style.markers = {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"};
      return by_role(std::move(style), "<|", "|>\n", "<|end|>\n");
    case ChatFormat::kZephyr:
      style.markers = {"<|system|>", "<|user|>", "<|assistant|>"};
      return by_role(std::move(style), "<|", "|>\n", tokens.eos + "\n");
  }
  SLUICE_CHECK(!"unknown format");
}

}  // namespace sluice::impl
