// Representatives and owners by the letter of docs/algorithm.md.

#pragma once

#include "backend/backend.h"

namespace sluice::impl::reference::selection {

std::unique_ptr<Selector> make_selector(const SelectorSpec& spec);

}  // namespace sluice::impl::reference::selection
