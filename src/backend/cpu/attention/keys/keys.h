// Attention on clusters of keys on the CPU, docs/algorithm.md section 3.

#pragma once

#include "backend/backend.h"

namespace sluice::impl::cpu::keys {

std::unique_ptr<KeysAttention> make_attention(const KeysSpec& spec);

}  // namespace sluice::impl::cpu::keys
