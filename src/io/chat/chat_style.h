// How the messages of a conversation are written for an instruct model: one of the formats in use,
// with what the template of a checkpoint says of it. docs/chat.md.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::impl {

enum class ChatFormat : uint8_t { kChatMl, kLlama2, kLlama3, kMistral, kGemma, kPhi3, kZephyr };

inline constexpr std::array kChatFormats = {
    ChatFormat::kChatMl, ChatFormat::kLlama2, ChatFormat::kLlama3, ChatFormat::kMistral,
    ChatFormat::kGemma,  ChatFormat::kPhi3,   ChatFormat::kZephyr};

std::string_view chat_format_name(ChatFormat format);  // "chatml", "llama2", …
std::optional<ChatFormat> chat_format_named(std::string_view name);
std::string chat_format_names();  // all of them, for messages

// The texts of a tokenizer's first and last token; empty where it has none.
struct ChatTokens {
  std::string bos, eos;
};

// What stands around the text of a message.
struct ChatFrame {
  std::string open, close;
};

struct ChatStyle {
  ChatFormat format = ChatFormat::kChatMl;
  std::string first = {};  // before everything, in most formats the first token
  ChatFrame system = {}, user = {}, answer = {};
  std::string ask = {};  // after the last user message: the answer follows
  // The system's message has no place of its own: it stands in the first user message, before its
  // text.
  bool system_in_user = false;
  bool trims = false;                // white space around a message is left out
  std::string default_system = {};   // of conversations without a system message; empty: none
  std::string system_preamble = {};  // before every system message, and in place of one
  std::vector<std::string> end_tokens = {};  // what ends an answer, as well as the end token
  // Parts of the format that a message must not contain as tokens.
  std::vector<std::string> markers = {};
};

// A format as its first models have it.
ChatStyle chat_style(ChatFormat format, const ChatTokens& tokens);

// Templates are Jinja programs of third parties. They are not run: a format is recognised by its
// markers. Longer ones are not looked at.
inline constexpr size_t kMostTemplateBytes = 256 * 1024;
// Nothing where no format is recognised.
std::optional<ChatStyle> recognise_chat(std::string_view chat_template, const ChatTokens& tokens);

}  // namespace sluice::impl
