#include "ranks/memory.h"

#include <algorithm>

#include "core/available_memory.h"
#include "ranks/archive.h"

namespace sluice::impl {
namespace {

struct RankMemory {
  std::string host;
  int64_t available = 0;

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(host, available);
  }
};

}  // namespace

std::vector<int64_t> memory_of(Communicator& ranks) {
  RankMemory own{.host = ranks.host(), .available = available_memory_bytes()};
  std::vector<RankMemory> all;
  for (const auto& bytes : ranks.gather_all(packed(own)))
    all.push_back(unpacked<RankMemory>(bytes));
  std::vector<int64_t> memory;
  for (const RankMemory& rank : all)
    memory.push_back(rank.available /
                     std::count_if(all.begin(), all.end(), [&](const RankMemory& other) {
                       return other.host == rank.host;
                     }));
  return memory;
}

}  // namespace sluice::impl
