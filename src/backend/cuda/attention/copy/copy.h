// Attention of representatives, modes `copy` and `paper`, on the device. docs/algorithm.md, section
// 3.

#pragma once

#include <memory>

#include "backend/attend.h"
#include "backend/cuda/runtime/device.h"

namespace sluice::impl::cuda::copy {

std::unique_ptr<RepsAttention> make_reps_attention(std::shared_ptr<Context> context,
                                                   const RepsSpec& spec);

}  // namespace sluice::impl::cuda::copy
