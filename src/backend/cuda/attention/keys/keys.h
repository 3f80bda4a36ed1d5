// Attention on representative keys, mode `keys`, on the device. docs/algorithm.md, section 3.

#pragma once

#include <memory>

#include "backend/attend.h"
#include "backend/cuda/runtime/device.h"

namespace sluice::impl::cuda::keys {

std::unique_ptr<KeysAttention> make_keys_attention(std::shared_ptr<Context> context,
                                                   const KeysSpec& spec);

}  // namespace sluice::impl::cuda::keys
