// Ranks that must be of one kind.

#pragma once

#include <string>

#include "ranks/communicator.h"

namespace sluice::impl {

// Throws Error, on all ranks alike, where the texts of two ranks differ. Collective.
void check_alike(Communicator& ranks, const std::string& text);

}  // namespace sluice::impl
