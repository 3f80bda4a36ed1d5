// Refined attention on the device: the cache of one layer, and the kernels that each pass calls.
// docs/algorithm.md, section 7.

#pragma once

#include <memory>

#include "backend/cuda/runtime/device.h"
#include "backend/refine.h"

namespace sluice::impl::cuda::refine {

// Throws Error for a spec that this device does not take.
std::unique_ptr<RefineAttention> make_refine_attention(std::shared_ptr<Context> context,
                                                       const RefineSpec& spec);

}  // namespace sluice::impl::cuda::refine
