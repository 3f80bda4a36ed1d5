// --chat-format and --system: how a prompt is written for an instruct model.

#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/chat/chat.h"
#include "model/checkpoint.h"
#include "model/generate.h"

namespace sluice::impl::cli {

struct ChatFlags {
  std::string format = "auto";
  std::string system;  // empty: the template's own, if it has one
};

void add_chat_options(CLI::App& command, ChatFlags& flags);

// What the flags and the model's template come to.
struct ChatChoice {
  std::optional<ChatStyle> style;  // nothing: a prompt is taken as it is
  bool has_template = false;       // the model is made for a conversation
  bool from_template = false;      // the style is the template's
  bool asked = false;              // by name, or for none
  std::string system = {};

  std::string name() const;  // of the format; "none"
  std::vector<int32_t> tokens_of(const Tokenizer& tokenizer, const std::string& prompt) const;
  // Ends an answer where the format does.
  void end_answers(const Tokenizer& tokenizer, GenerateOptions& options) const;
};

// Throws CLI::ValidationError for a system message without a format.
ChatChoice choose_chat(const ChatFlags& flags, const Checkpoint& checkpoint,
                       const Tokenizer& tokenizer);

// One line: the format and where it is from, or that the template is of none. Empty without a
// template and a format.
std::string chat_note(const ChatChoice& choice);

// For the settings of results.json: `chat_format` and `system`, where there are any.
nlohmann::json describe_chat(const ChatChoice& choice);

// What to try where a model ends before the first token.
std::string no_answer_hint(const ChatChoice& choice);

}  // namespace sluice::impl::cli
