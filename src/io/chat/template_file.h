// The chat template that comes with a checkpoint.

#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "io/gguf.h"

namespace sluice::impl {

// chat_template.jinja, or `chat_template` of tokenizer_config.json: a text, or a list of named ones
// of which `default` counts. Nothing where there is none. Throws Error for files that cannot be
// read and for values of another type.
std::optional<std::string> read_chat_template(const std::filesystem::path& folder);
// `tokenizer.chat_template` of a GGUF file.
std::optional<std::string> read_chat_template(const GgufFile& file);

}  // namespace sluice::impl
