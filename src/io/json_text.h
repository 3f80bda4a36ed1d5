// JSON from a file, parsed so that whatever it holds ends in a value or in one Error.

#pragma once

#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/error.h"

namespace sluice::impl {

// The parser's own words on one line, without its error code.
Error json_error(const std::string& label, const std::exception& error);

// Throws Error beginning with `label` for text that is not JSON or nests too deeply.
nlohmann::json parse_json(std::string_view text, const std::string& label);

// A value as a message shows it: `12`, `"gelu"`, "an array"; never recursive, never long.
std::string describe_json(const nlohmann::json& value);

}  // namespace sluice::impl
