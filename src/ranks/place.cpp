#include "ranks/place.h"

#include "ranks/hosts.h"

namespace sluice::impl {

int place_on_machine(Communicator& ranks) {
  const auto all = gather_with_hosts(ranks, ranks.rank());
  return count_on<int>(std::span(all).first(static_cast<size_t>(ranks.rank())), ranks.host());
}

}  // namespace sluice::impl
