// Baselines on the CPU: one attention routine on the keys that a chooser names. docs/baselines.md.

#pragma once

#include <memory>

#include "backend/baseline.h"

namespace sluice::impl::cpu::baseline {

std::unique_ptr<BaselineAttention> make_attention(const BaselineSpec& spec);

}  // namespace sluice::impl::cpu::baseline
