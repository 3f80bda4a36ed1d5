// What this process may still take of the machine's memory.

#pragma once

#include <cstdint>

namespace sluice::impl {

// Bytes: what the kernel takes for available, or less where a limit of the process (ulimit -v) or
// of a control group that it is in leaves less. The largest number where the kernel does not tell.
int64_t available_memory_bytes();

}  // namespace sluice::impl
