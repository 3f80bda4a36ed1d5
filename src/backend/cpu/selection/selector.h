#pragma once

#include "backend/backend.h"

namespace sluice::impl::cpu::selection {

std::unique_ptr<Selector> make_selector(const SelectorSpec& spec);

}  // namespace sluice::impl::cpu::selection
