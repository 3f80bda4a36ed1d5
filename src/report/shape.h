// Which keys of results.json the page relies on, and of what type they are.

#pragma once

#include <string_view>

namespace sluice::impl {

class JsonValue;

// Throws Error for the first value that differs from the shape called `name`: "header", or a
// command that measures. Other names fit everything.
bool has_shape(std::string_view name);
void check_shape(const JsonValue& value, std::string_view name);

}  // namespace sluice::impl
