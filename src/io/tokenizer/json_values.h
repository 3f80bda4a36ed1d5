// Values of tokenizer files, on top of io/json/value.h.

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "io/json/parse.h"
#include "io/json/value.h"

namespace sluice::impl::tok {

using Json = nlohmann::json;

inline constexpr const char* kJsonHint =
    "was the file written by Hugging Face's tokenizers or transformers?";

// `stream` may be null.
Json read_tokenizer_file(const std::filesystem::path& path, JsonStream* stream = nullptr);

// Nothing else than 0 to this is accepted, so ids are safe to count with. The largest vocabularies
// have about 2^18.
inline constexpr int64_t kMaxTokenId = 1 << 24;
int32_t token_id(const JsonValue& json);
// The same of a value without a place; nothing where it is no id.
std::optional<int32_t> as_token_id(const Json& value);

// A string of exactly one character under `key`.
char32_t char_or(const JsonValue& json, std::string_view key, char32_t otherwise);

// "type": what kind of step an object describes.
const std::string& type_of(const JsonValue& json);
[[noreturn]] void refuse_type(const JsonValue& json, std::string_view type);

}  // namespace sluice::impl::tok
