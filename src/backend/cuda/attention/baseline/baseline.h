// Baselines on the device (docs/baselines.md). Plain kernels: they measure what a method loses, not
// its time.

#pragma once

#include <memory>

#include "backend/baseline.h"
#include "backend/cuda/runtime/device.h"

namespace sluice::impl::cuda::baseline {

std::unique_ptr<BaselineAttention> make_baseline_attention(std::shared_ptr<Context> context,
                                                           const BaselineSpec& spec);

}  // namespace sluice::impl::cuda::baseline
