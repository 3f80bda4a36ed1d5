#include "model/join_devices.h"

#include <set>
#include <string>

namespace sluice::impl {

std::unique_ptr<RankSums> join_devices(Communicator& ranks, DeviceRanks* devices) {
  const std::string own = devices != nullptr ? ranks.host() + " " + devices->device_id() : "";
  std::set<std::string> different;
  bool all_have_one = true;
  for (const auto& id : ranks.gather_all(std::as_bytes(std::span(own)))) {
    all_have_one = all_have_one && !id.empty();
    different.emplace(reinterpret_cast<const char*>(id.data()), id.size());
  }
  if (!all_have_one || std::ssize(different) < ranks.size()) return nullptr;
  std::vector<std::byte> group;
  if (ranks.rank() == 0) group = devices->make_group();
  ranks.share(group);
  return devices->join(group, ranks.rank(), ranks.size());
}

}  // namespace sluice::impl
