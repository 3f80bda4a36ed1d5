// Refined attention as plain loops, docs/algorithm.md section 7.

#pragma once

#include "backend/backend.h"

namespace sluice::impl::reference::refine {

std::unique_ptr<RefineAttention> make_attention(const RefineSpec& spec);

}  // namespace sluice::impl::reference::refine
