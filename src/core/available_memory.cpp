#include "core/available_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace sluice::impl {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// The number that a file begins with; none where it begins with another word ("max").
std::optional<int64_t> number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (!(file >> number) || number < 0) return {};
  return number;
}

int64_t of_machine() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  for (int64_t kib = 0; file >> key >> kib; file.ignore(64, '\n'))
    if (key == "MemAvailable:") return kib <= kNoLimit / 1024 ? kib * 1024 : kNoLimit;
  return kNoLimit;
}

int64_t of_address_space() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kNoLimit;
  const int64_t taken = number_in("/proc/self/statm").value_or(0) * ::sysconf(_SC_PAGESIZE);
  const auto most = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, kNoLimit));
  return std::max<int64_t>(0, most - taken);
}

// Of the group of this process and of those around it, which are folders (version 2).
int64_t of_control_groups() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line) && !line.starts_with("0::/")) {
  }
  if (!line.starts_with("0::/")) return kNoLimit;
  const std::filesystem::path root = "/sys/fs/cgroup";
  int64_t least = kNoLimit;
  for (std::filesystem::path group = root / line.substr(4);; group = group.parent_path()) {
    const auto most = number_in(group / "memory.max"), taken = number_in(group / "memory.current");
    if (most && taken) least = std::min(least, std::max<int64_t>(0, *most - *taken));
    if (group == root || !group.has_relative_path()) return least;
  }
}

}  // namespace

int64_t available_memory_bytes() {
  return std::min({of_machine(), of_address_space(), of_control_groups()});
}

}  // namespace sluice::impl
