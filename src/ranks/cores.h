// The cores of a machine, divided over the ranks that run on it.

#pragma once

#include "ranks/communicator.h"

namespace sluice::impl {

struct RankCores {
  int own = 1;      // this rank's share: threads that it may start
  int allowed = 1;  // that the ranks of this machine may run on, all together
  int machine = 1;  // that it has
};
// Collective. Launchers may bind ranks to cores; more threads than those would only wait for each
// other.
RankCores cores_of(Communicator& ranks);

}  // namespace sluice::impl
