// Messages to an instruct model, and its answer.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sluice/generate.h"
#include "sluice/model.h"

namespace sluice {

enum class Role : uint8_t { kSystem, kUser, kAssistant };

struct Message {
  Role role = Role::kUser;
  std::string text;
};

// The format that the model's chat template is recognised as: "chatml", "llama2", "llama3",
// "mistral", "gemma", "phi3" or "zephyr"; empty where there is no template, or one of another
// format. Throws Error for a checkpoint without a tokenizer and for a damaged template.
SLUICE_API std::string chat_format(const Model& model);

// The messages as the model expects them, up to the place of the answer. Messages are the system's,
// if there is one, and then the user's and the assistant's in alternation. format: a name of
// chat_format(); empty for the model's own. Throws Error for other messages, for a name that is not
// known, and where the model has no format of its own.
SLUICE_API std::string render_chat(const Model& model, std::span<const Message> messages,
                                   const std::string& format = {});
// Their token ids. Tokens of the format are tokens; the text of a message is text, whatever is
// written in it, which tokenize() of the rendered text could not tell apart.
SLUICE_API std::vector<int32_t> tokenize_chat(const Model& model, std::span<const Message> messages,
                                              const std::string& format = {});

// Answers the last message, as generate() continues a prompt; what ends an answer in the format
// ends it too. Throws Error as both do.
SLUICE_API GenerateResult chat(Model& model, std::span<const Message> messages,
                               const GenerateOptions& options = {}, const std::string& format = {});

}  // namespace sluice
