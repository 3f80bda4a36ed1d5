#include "ranks/memory.h"

#include <algorithm>

#include "core/available_memory.h"
#include "ranks/archive.h"

namespace sluice::impl {
namespace {

struct RankMemory {
  std::string host;
  AvailableMemory available{};

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(host, available);
  }
};

}  // namespace

std::vector<int64_t> memory_of(Communicator& ranks) {
  RankMemory own{.host = ranks.host(), .available = available_memory()};
  std::vector<RankMemory> all;
  for (const auto& bytes : ranks.gather_all(packed(own)))
    all.push_back(unpacked<RankMemory>(bytes));
  std::vector<int64_t> memory;
  for (const RankMemory& rank : all) {
    const auto n_here = std::count_if(
        all.begin(), all.end(), [&](const RankMemory& other) { return other.host == rank.host; });
    memory.push_back(std::min(rank.available.shared / n_here, rank.available.own));
  }
  return memory;
}

}  // namespace sluice::impl
