// The memory of a machine, divided over the ranks that run on it.

#pragma once

#include <cstdint>
#include <vector>

#include "ranks/communicator.h"

namespace sluice::impl {

// Bytes that each rank may still take: what is available on its machine, or to itself where that is
// less, divided by the ranks there. Collective.
std::vector<int64_t> memory_of(Communicator& ranks);

}  // namespace sluice::impl
