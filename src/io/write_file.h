// Files that are written whole or not at all.

#pragma once

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <string_view>

namespace sluice::impl {

// Writes to a file of a random name in the same folder, and renames it, so that an interrupted run
// leaves no half a file. Links, mode and owner stay as they are. What a rename would change is
// written in place: a pipe, a device, a file with several names, one whose owner cannot be kept,
// one in a folder where nothing can be added. An open descriptor of this process (/dev/stdout,
// /dev/fd/N) is written to as it is: what stands in its file stays there.
void write_file(const std::filesystem::path& path,
                const std::function<void(std::ostream&)>& content);
void write_file(const std::filesystem::path& path, std::string_view content);

// Throws now what write_file would throw after hours of work.
void check_writable(const std::filesystem::path& path);

}  // namespace sluice::impl
