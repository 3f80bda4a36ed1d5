// Text from files and users made safe to print inside a one-line message.

#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace sluice::impl {

// `text` in backticks: bytes outside printable ASCII as \xNN, long text cut with its length given.
std::string quote(std::string_view text);

// A path as the user wrote it, with control characters as \xNN.
std::string path_label(const std::filesystem::path& path);

}  // namespace sluice::impl
