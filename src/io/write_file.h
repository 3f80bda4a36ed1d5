// Files that are written whole or not at all.

#pragma once

#include <filesystem>
#include <string_view>

namespace sluice {

// Writes beside the target and renames, so that an interrupted run leaves no half a file.
void write_file(const std::filesystem::path& path, std::string_view content);

}  // namespace sluice
