#pragma once

#include "backend/backend.h"

namespace sluice::cpu {

std::unique_ptr<KeysAttention> make_keys_attention(const KeysSpec& spec);

}  // namespace sluice::cpu
