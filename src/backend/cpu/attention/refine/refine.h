// Refined attention on the CPU: the cache of one layer of one sequence. docs/algorithm.md,
// section 7.

#pragma once

#include <memory>

#include "backend/refine.h"

namespace sluice::impl::cpu::refine {

std::unique_ptr<RefineAttention> make_attention(const RefineSpec& spec);

}  // namespace sluice::impl::cpu::refine
