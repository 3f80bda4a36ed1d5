// Ranks with a device each, joined for sums from device to device.

#pragma once

#include <memory>

#include "backend/capabilities.h"
#include "ranks/communicator.h"

namespace sluice::impl {

// Collective; devices: of this rank, or nullptr where they cannot be joined. nullptr on all ranks
// unless each has a device that is no other's.
std::unique_ptr<RankSums> join_devices(Communicator& ranks, DeviceRanks* devices);

}  // namespace sluice::impl
