#include "ranks/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "ranks/archive.h"

namespace sluice::impl {
namespace {

struct RankPlace {
  std::string host;
  cpu_set_t cores{};

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(host, cores);
  }
};

}  // namespace

RankCores cores_of(Communicator& ranks) {
  RankPlace own{.host = ranks.host()};
  // Fails on machines of more cores than a cpu_set_t holds: all that it holds are taken for
  // allowed.
  if (::sched_getaffinity(0, sizeof own.cores, &own.cores) != 0)
    for (int core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &own.cores);
  cpu_set_t allowed = own.cores;
  int n_here = 0;
  for (const auto& bytes : ranks.gather_all(packed(own))) {
    RankPlace other = unpacked<RankPlace>(bytes);
    if (other.host != own.host) continue;
    ++n_here;
    CPU_OR(&allowed, &allowed, &other.cores);
  }
  RankCores cores{.allowed = CPU_COUNT(&allowed),
                  .machine = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN))};
  cores.own = std::clamp(cores.allowed / n_here, 1, CPU_COUNT(&own.cores));
  return cores;
}

}  // namespace sluice::impl
