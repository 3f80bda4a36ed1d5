// Which keys of results.json the page relies on, and of what type they are.

#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace sluice::impl {

// Throws Error naming `label` and the JSON path of the first value that differs from the shape
// called `name`: "header", or a command that measures. Other names fit everything.
void check_shape(const nlohmann::json& value, std::string_view name, const std::string& label);

}  // namespace sluice::impl
