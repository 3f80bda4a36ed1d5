// Selection and attention on representative tokens, on the device. docs/algorithm.md, sections 2
// and 3.

#pragma once

#include <memory>

#include "backend/attend.h"
#include "backend/cuda/runtime/device.h"

namespace sluice::impl::cuda {

std::unique_ptr<Selector> make_cuda_selector(std::shared_ptr<Context> context,
                                             const SelectorSpec& spec);
std::unique_ptr<KeysAttention> make_cuda_keys_attention(std::shared_ptr<Context> context,
                                                        const KeysSpec& spec);
std::unique_ptr<RepsAttention> make_cuda_reps_attention(std::shared_ptr<Context> context,
                                                        const RepsSpec& spec);

}  // namespace sluice::impl::cuda
