// A file -> JSON.

#pragma once

#include <filesystem>

#include "io/json/parse.h"

namespace sluice::impl {

// As parse_json; the path is the label.
nlohmann::json read_json_file(const std::filesystem::path& path, const JsonLimits& limits,
                              JsonStream* stream = nullptr);

}  // namespace sluice::impl
