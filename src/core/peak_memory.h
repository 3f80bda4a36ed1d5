// The most memory that this process has held so far, file maps included.

#pragma once

#include <cstdint>

namespace sluice::impl {

int64_t peak_memory_bytes();

}  // namespace sluice::impl
