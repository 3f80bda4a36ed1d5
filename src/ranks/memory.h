// The memory of a machine, divided over the ranks that run on it.

#pragma once

#include <cstdint>
#include <vector>

#include "ranks/communicator.h"

namespace sluice::impl {

// Bytes that each rank may still take: what is available on its machine, divided by the ranks
// there, or what its own limit leaves where that is less. Collective.
std::vector<int64_t> memory_of(Communicator& ranks);

}  // namespace sluice::impl
