#include "ranks/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "ranks/hosts.h"

namespace sluice::impl {

RankCores cores_of(Communicator& ranks) {
  cpu_set_t own{};
  // Fails on machines of more cores than a cpu_set_t holds: all that it holds are taken for
  // allowed.
  if (::sched_getaffinity(0, sizeof own, &own) != 0)
    for (int core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &own);
  cpu_set_t allowed = own;
  auto all = gather_with_hosts(ranks, own);
  for (auto& rank : all)
    if (rank.host == ranks.host()) CPU_OR(&allowed, &allowed, &rank.value);
  RankCores cores{.allowed = CPU_COUNT(&allowed),
                  .machine = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN))};
  cores.own =
      std::clamp(cores.allowed / count_on<cpu_set_t>(all, ranks.host()), 1, CPU_COUNT(&own));
  return cores;
}

}  // namespace sluice::impl
