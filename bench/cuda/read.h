// Reads memory and does nothing with it: how fast that can be.

#pragma once

#include "backend/cuda/runtime/device.h"

namespace sluice::impl::bench {

// bytes: a multiple of 16. sum: one word that the compiler believes to be needed.
void read_bytes(cuda::Context& context, const std::byte* data, int64_t bytes, uint32_t* sum);

}  // namespace sluice::impl::bench
