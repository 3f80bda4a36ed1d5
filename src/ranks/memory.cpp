#include "ranks/memory.h"

#include <algorithm>

#include "core/available_memory.h"
#include "ranks/hosts.h"

namespace sluice::impl {

std::vector<int64_t> memory_of(Communicator& ranks) {
  const auto all = gather_with_hosts(ranks, available_memory());
  std::vector<int64_t> memory;
  for (const auto& rank : all)
    memory.push_back(
        std::min(rank.value.shared / count_on<AvailableMemory>(all, rank.host), rank.value.own));
  return memory;
}

}  // namespace sluice::impl
