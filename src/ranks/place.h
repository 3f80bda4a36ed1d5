// Where a rank is among those of its machine.

#pragma once

#include "ranks/communicator.h"

namespace sluice::impl {

// How many ranks of lower numbers run on this rank's machine. Collective.
int place_on_machine(Communicator& ranks);

}  // namespace sluice::impl
