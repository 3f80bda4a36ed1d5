#include "core/available_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

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

// The value behind a word of a file of lines "word value"; 0 where it is not there.
int64_t value_in(const std::filesystem::path& path, std::string_view word) {
  std::ifstream file(path);
  std::string key;
  for (int64_t value = 0; file >> key >> value;)
    if (key == word) return std::max<int64_t>(0, value);
  return 0;
}

int64_t of_control_groups() {
  std::ifstream file("/proc/self/cgroup");
  constexpr std::string_view kVersion2 = "0::";
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(kVersion2))
      return available_in_group("/sys/fs/cgroup", line.substr(kVersion2.size()));
  return kNoLimit;
}

}  // namespace

int64_t available_in_group(const std::filesystem::path& root, const std::string& group) {
  int64_t least = kNoLimit;
  std::filesystem::path folder = root;
  const auto look = [&] {
    const auto most = number_in(folder / "memory.max"),
               taken = number_in(folder / "memory.current");
    if (!most || !taken) return;
    const int64_t files = value_in(folder / "memory.stat", "active_file") +
                          value_in(folder / "memory.stat", "inactive_file");
    least = std::min(least, std::max<int64_t>(0, *most - std::max<int64_t>(0, *taken - files)));
  };
  look();
  for (const std::filesystem::path& part : std::filesystem::path(group).relative_path()) {
    folder /= part;
    look();
  }
  return least;
}

AvailableMemory available_memory() {
  return {.shared = std::min(of_machine(), of_control_groups()), .own = of_address_space()};
}

}  // namespace sluice::impl
