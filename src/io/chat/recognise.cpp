// Which format a chat template writes, by the markers in it.

#include <algorithm>

#include "io/chat/chat_style.h"

namespace sluice::impl {
namespace {

constexpr size_t kMostLiteralBytes = 4096;  // of a text that is taken over from a template

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Line ends of string literals as themselves: a template spells them with a backslash, or, where
// it came through JSON, not.
std::string with_line_ends(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escaped = text[i] == '\\' && i + 1 < text.size() && text[i + 1] == 'n';
    out += escaped ? '\n' : text[i];
    i += escaped ? 1 : 0;
  }
  return out;
}

// The text between `open` and the next of `close`, where nothing but text stands between them: no
// end of a literal and no other part of a template. Empty where there is none.
std::string literal_between(std::string_view text, std::string_view open, std::string_view close) {
  for (size_t at = text.find(open); at != std::string_view::npos; at = text.find(open, at + 1)) {
    const std::string_view rest = text.substr(at + open.size(), kMostLiteralBytes);
    const std::string_view literal = rest.substr(0, rest.find(close));
    if (literal.size() == rest.size()) continue;  // not closed
    if (!literal.empty() && literal.find_first_of("\"{}") == std::string_view::npos &&
        !has(literal, "' ") && !has(literal, "'+"))
      return std::string(literal);
  }
  return {};
}

bool is_zephyr(std::string_view text) {
  const size_t user = text.find("<|user|>");
  if (user == std::string_view::npos || !has(text, "<|assistant|>")) return false;
  // The end token stands behind the user's message; other formats have it behind answers alone.
  const std::string_view rest = text.substr(user);
  const std::string_view message = rest.substr(0, rest.find("{%"));
  return has(message, "eos_token") || has(message, "</s>") || has(message, "<|endoftext|>");
}

std::optional<ChatFormat> format_of(std::string_view text) {
  if (has(text, "<|im_sep|>")) return std::nullopt;  // Phi-4's, between other tokens
  if (has(text, "<|im_start|>") && has(text, "<|im_end|>")) return ChatFormat::kChatMl;
  if (has(text, "<|start_header_id|>") && has(text, "<|eot_id|>")) return ChatFormat::kLlama3;
  if (has(text, "<start_of_turn>") && has(text, "<end_of_turn>")) return ChatFormat::kGemma;
  if (has(text, "<|user|>") && has(text, "<|end|>")) return ChatFormat::kPhi3;
  if (is_zephyr(text)) return ChatFormat::kZephyr;
  if (has(text, "[INST]") && has(text, "[/INST]"))
    return has(text, "<<SYS>>") ? ChatFormat::kLlama2 : ChatFormat::kMistral;
  return std::nullopt;
}

// Versions of it differ in spaces, and in where the system's message stands.
void read_mistral(std::string_view text, ChatStyle& style) {
  style.user = {.open = has(text, "[INST] ") ? "[INST] " : "[INST]",
                .close = has(text, " [/INST]") ? " [/INST]" : "[/INST]"};
  const bool space = has(text, "' ' + message") || has(text, "\" \" + message");
  style.answer.open = space ? " " : "";
  if (!has(text, "[SYSTEM_PROMPT]")) return;
  style.system_in_user = false;
  style.system = {.open = has(text, "[SYSTEM_PROMPT] ") ? "[SYSTEM_PROMPT] " : "[SYSTEM_PROMPT]",
                  .close = "[/SYSTEM_PROMPT]"};
}

// Llama 3.1 and later tell the model dates.
std::string llama3_preamble(std::string_view text) {
  const std::string knowledge = literal_between(text, "Cutting Knowledge Date: ", "\n");
  const std::string today = literal_between(text, "set date_string = \"", "\"");
  if (knowledge.empty() || today.empty()) return {};
  return "Cutting Knowledge Date: " + knowledge + "\nToday Date: " + today + "\n\n";
}

}  // namespace

std::optional<ChatStyle> recognise_chat(std::string_view chat_template, const ChatTokens& tokens) {
  if (chat_template.size() > kMostTemplateBytes) return std::nullopt;
  const std::string text = with_line_ends(chat_template);
  const std::optional<ChatFormat> format = format_of(text);
  if (!format) return std::nullopt;
  ChatStyle style = chat_style(*format, tokens);
  // Llama 2's stands before every user message.
  const bool first =
      *format != ChatFormat::kLlama2 && (has(text, "bos_token") || has(text, "<|begin_of_text|>"));
  style.first = first ? tokens.bos : "";
  if (*format == ChatFormat::kChatMl)
    style.default_system = literal_between(text, style.system.open, "<|im_end|>");
  if (*format == ChatFormat::kLlama3) style.system_preamble = llama3_preamble(text);
  if (*format == ChatFormat::kMistral) read_mistral(text, style);
  return style;
}

}  // namespace sluice::impl
