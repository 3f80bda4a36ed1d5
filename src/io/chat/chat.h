// Messages -> the text and the token ids that an instruct model expects.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/chat/chat_style.h"
#include "io/tokenizer/tokenizer.h"

namespace sluice::impl {

enum class ChatRole : uint8_t { kSystem, kUser, kAssistant };

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string text;
};

// All messages, and, where the last is the user's, what the answer follows. Throws Error unless
// they are the system's, if there is one, and then the user's and the assistant's in alternation.
std::vector<TextPiece> render_chat(const ChatStyle& style, std::span<const ChatMessage> messages);
// What follows an answer: its end and the next user message, up to the place of the next answer.
std::vector<TextPiece> render_next(const ChatStyle& style, std::string_view text);

std::string joined(std::span<const TextPiece> pieces);

// Ids of a conversation from its beginning: tokens of the format are tokens, the text of messages
// is text, whatever is written in it. The tokenizer's first token stands there once, where the
// format or the tokenizer puts it.
std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const ChatStyle& style,
                                 std::span<const ChatMessage> messages);
// Ids of render_next().
std::vector<int32_t> encode_next(const Tokenizer& tokenizer, const ChatStyle& style,
                                 std::string_view text);

// What ends an answer: ids of end_tokens that the vocabulary has, of the others the text.
struct ChatEnds {
  std::vector<int32_t> ids;
  std::vector<std::string> texts;
};
ChatEnds chat_ends(const Tokenizer& tokenizer, const ChatStyle& style);

ChatTokens chat_tokens(const Tokenizer& tokenizer);

}  // namespace sluice::impl
