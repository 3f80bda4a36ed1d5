// Attention among representatives on the CPU, docs/algorithm.md section 3.

#pragma once

#include "backend/backend.h"

namespace sluice::impl::cpu::copy {

std::unique_ptr<RepsAttention> make_attention(const RepsSpec& spec);

}  // namespace sluice::impl::cpu::copy
