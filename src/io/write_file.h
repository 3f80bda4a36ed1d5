// Files that are written whole or not at all.

#pragma once

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <string_view>

namespace sluice::impl {

// Writes to a file in the same folder and renames it, so that an interrupted run leaves no half a
// file. A link stays one, and so does the file's mode; a pipe or a device is written into as it is,
// and so is an open descriptor of this process that is named as /dev/fd/N: what stands in its file
// stays there.
void write_file(const std::filesystem::path& path,
                const std::function<void(std::ostream&)>& content);
void write_file(const std::filesystem::path& path, std::string_view content);

// Throws now what write_file would throw after hours of work.
void check_writable(const std::filesystem::path& path);

}  // namespace sluice::impl
