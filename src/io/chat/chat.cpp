#include "io/chat/chat.h"

#include <algorithm>

#include "core/error.h"

namespace sluice::impl {
namespace {

constexpr std::string_view kSpace = " \t\n\r\f\v";

std::string_view right_trimmed(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

std::string_view trimmed(std::string_view text) {
  text = right_trimmed(text);
  return text.substr(std::min(text.find_first_not_of(kSpace), text.size()));
}

class Writer {
 public:
  explicit Writer(const ChatStyle& style) : style_(style) {}

  void markup(std::string_view text) { add(text, false); }
  void plain(std::string_view text) { add(text, true); }
  void message(const ChatFrame& frame, std::string_view text) {
    markup(frame.open);
    plain(style_.trims ? trimmed(text) : text);
    markup(frame.close);
  }
  // system: to be put into it; empty: none.
  void user(std::string_view text, std::string_view system) {
    if (system.empty()) return message(style_.user, text);
    markup(style_.user.open + style_.system.open);
    plain(system);
    markup(style_.system.close);
    // Llama 2 trims both together.
    const bool together = style_.format == ChatFormat::kLlama2;
    plain(together ? right_trimmed(text) : style_.trims ? trimmed(text) : text);
    markup(style_.user.close);
  }
  void system(std::string_view text) {
    markup(style_.system.open + style_.system_preamble);
    plain(style_.trims ? trimmed(text) : text);
    markup(style_.system.close);
  }

  std::vector<TextPiece> take() { return std::move(pieces_); }

 private:
  void add(std::string_view text, bool plain) {
    if (text.empty()) return;
    if (!pieces_.empty() && pieces_.back().plain == plain)
      pieces_.back().text += text;
    else
      pieces_.push_back({.text = std::string(text), .plain = plain});
  }

  const ChatStyle& style_;
  std::vector<TextPiece> pieces_;
};

// The user's and the assistant's messages, without the system's before them.
std::span<const ChatMessage> checked(std::span<const ChatMessage> messages) {
  const bool system = !messages.empty() && messages.front().role == ChatRole::kSystem;
  const auto rest = messages.subspan(system ? 1 : 0);
  if (rest.empty()) throw Error("there is no user message", "give one after the system's");
  for (size_t i = 0; i < rest.size(); ++i)
    if (rest[i].role != (i % 2 == 0 ? ChatRole::kUser : ChatRole::kAssistant))
      throw Error("messages are not the user's and the assistant's in alternation",
                  "the system's first, if there is one, then the user's");
  return rest;
}

bool puts_first(const Tokenizer& tokenizer, int32_t token) {
  const std::vector<int32_t> of_nothing = tokenizer.encode("", /*add_special=*/true);
  return !of_nothing.empty() && of_nothing.front() == token;
}

}  // namespace

std::vector<TextPiece> render_chat(const ChatStyle& style, std::span<const ChatMessage> messages) {
  const auto rest = checked(messages);
  const bool given = rest.size() < messages.size();
  const std::string& system = given ? messages.front().text : style.default_system;
  Writer out(style);
  out.markup(style.first);
  if (!style.system_in_user && (given || !system.empty() || !style.system_preamble.empty()))
    out.system(system);
  for (size_t i = 0; i < rest.size(); ++i)
    if (rest[i].role == ChatRole::kUser)
      out.user(rest[i].text, i == 0 && style.system_in_user ? system : "");
    else
      out.message(style.answer, rest[i].text);
  if (rest.back().role == ChatRole::kUser) out.markup(style.ask);
  return out.take();
}

std::vector<TextPiece> render_next(const ChatStyle& style, std::string_view text) {
  Writer out(style);
  out.markup(style.answer.close);
  out.user(text, "");
  out.markup(style.ask);
  return out.take();
}

std::string joined(std::span<const TextPiece> pieces) {
  std::string text;
  for (const TextPiece& piece : pieces) text += piece.text;
  return text;
}

std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const ChatStyle& style,
                                 std::span<const ChatMessage> messages) {
  const std::vector<TextPiece> pieces = render_chat(style, messages);
  std::vector<int32_t> ids =
      tokenizer.encode_pieces({.pieces = pieces, .markers = style.markers, .continues = false});
  const std::optional<int32_t> first = tokenizer.bos();
  if (first && puts_first(tokenizer, *first) && (ids.empty() || ids.front() != *first))
    ids.insert(ids.begin(), *first);
  return ids;
}

std::vector<int32_t> encode_next(const Tokenizer& tokenizer, const ChatStyle& style,
                                 std::string_view text) {
  const std::vector<TextPiece> pieces = render_next(style, text);
  return tokenizer.encode_pieces({.pieces = pieces, .markers = style.markers, .continues = true});
}

ChatEnds chat_ends(const Tokenizer& tokenizer, const ChatStyle& style) {
  ChatEnds ends;
  for (const std::string& token : style.end_tokens)
    if (const auto id = tokenizer.id_of(token))
      ends.ids.push_back(*id);
    else if (token == style.end_tokens.front())
      ends.texts.push_back(token);
  if (const auto eos = tokenizer.eos()) ends.ids.push_back(*eos);
  return ends;
}

ChatTokens chat_tokens(const Tokenizer& tokenizer) {
  const auto text = [&](std::optional<int32_t> id) {
    return id ? tokenizer.token_of(*id) : std::string();
  };
  return {.bos = text(tokenizer.bos()), .eos = text(tokenizer.eos())};
}

}  // namespace sluice::impl
