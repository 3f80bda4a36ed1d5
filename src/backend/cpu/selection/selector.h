#pragma once

#include "backend/backend.h"

namespace sluice::cpu {

std::unique_ptr<Selector> make_selector(const SelectorSpec& spec);

}  // namespace sluice::cpu
