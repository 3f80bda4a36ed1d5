// The processes that a launcher (mpirun, srun) started together with this one.

#pragma once

#include <functional>
#include <optional>
#include <string>

#include "ranks/communicator.h"

namespace sluice::impl {

// What a launcher tells its processes through the environment, before MPI is there.
struct Launch {
  std::optional<int> rank, size;
  bool by_launcher = false;  // PMIx tells a rank and no size

  bool several() const { return by_launcher && size.value_or(2) > 1; }
};
// Of Open MPI's and MPICH's mpirun, PMIx, and Slurm's srun with either. A batch job of Slurm whose
// script starts one process is none.
Launch launched(const std::function<const char*(const char*)>& environment);
Launch launched();  // by the environment of this process

// All of them, once for the process: the first call starts MPI, the end of the process finishes it.
// Without a launcher, or with one process, it is alone(). Throws Error where the module of MPI is
// not installed, or was made for another MPI than the launcher's.
Communicator& world();

}  // namespace sluice::impl
