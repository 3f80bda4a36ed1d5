// Values of tokenizer files, on top of io/json/value.h.

#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "io/json/value.h"

namespace sluice::impl::tok {

using Json = nlohmann::json;

inline constexpr const char* kJsonHint =
    "was the file written by Hugging Face's tokenizers or transformers?";

Json read_tokenizer_file(const std::filesystem::path& path);

// 0 to 2^24. Nothing else is accepted, so ids are safe to count with.
int32_t token_id(const JsonValue& json);

// A string of exactly one character under `key`.
char32_t char_or(const JsonValue& json, std::string_view key, char32_t otherwise);

// "type": what kind of step an object describes.
const std::string& type_of(const JsonValue& json);
[[noreturn]] void refuse_type(const JsonValue& json, std::string_view type);

}  // namespace sluice::impl::tok
