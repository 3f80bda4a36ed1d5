// The largest resident size of this process, as the kernel counts it.

#pragma once

#include <cstdint>

namespace sluice::impl {

// Bytes since the last restart, or since the process began; 0 where the kernel does not tell. Pages
// of mapped files count while they are resident.
int64_t peak_memory_bytes();

// Starts a new maximum, where the kernel allows it.
void restart_peak_memory();

}  // namespace sluice::impl
