// Attention among representatives on the CPU, docs/algorithm.md section 3.

#pragma once

#include "backend/backend.h"

namespace sluice::cpu {

std::unique_ptr<RepsAttention> make_reps_attention(const RepsSpec& spec);

}  // namespace sluice::cpu
