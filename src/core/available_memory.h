// What this process may still take of the machine's memory.

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace sluice::impl {

// Bytes; the largest number where nothing limits them, or the kernel does not tell.
struct AvailableMemory {
  int64_t shared;  // that the machine and the control groups of this process leave, to all in them
  int64_t own;     // that a limit of this process leaves (ulimit -v)
};
AvailableMemory available_memory();

// What a control group (version 2) and those around it leave. Pages of files do not count as taken:
// the kernel drops them for others. root: where the folders of groups are.
int64_t available_in_group(const std::filesystem::path& root, const std::string& group);

}  // namespace sluice::impl
