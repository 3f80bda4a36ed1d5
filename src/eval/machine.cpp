#include "eval/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string_view>
#include <vector>

namespace sluice::impl {
namespace {

struct Core {
  uint32_t implementer, part;
  std::string_view name;
};
// Main ID Register numbers of the cores that Linux machines commonly have, as the vendors list
// them.
constexpr std::array kCores = {
    Core{0x41, 0xd03, "Cortex-A53"},   Core{0x41, 0xd04, "Cortex-A35"},
    Core{0x41, 0xd05, "Cortex-A55"},   Core{0x41, 0xd07, "Cortex-A57"},
    Core{0x41, 0xd08, "Cortex-A72"},   Core{0x41, 0xd09, "Cortex-A73"},
    Core{0x41, 0xd0a, "Cortex-A75"},   Core{0x41, 0xd0b, "Cortex-A76"},
    Core{0x41, 0xd0c, "Neoverse-N1"},  Core{0x41, 0xd0d, "Cortex-A77"},
    Core{0x41, 0xd40, "Neoverse-V1"},  Core{0x41, 0xd41, "Cortex-A78"},
    Core{0x41, 0xd42, "Cortex-A78AE"}, Core{0x41, 0xd44, "Cortex-X1"},
    Core{0x41, 0xd46, "Cortex-A510"},  Core{0x41, 0xd47, "Cortex-A710"},
    Core{0x41, 0xd48, "Cortex-X2"},    Core{0x41, 0xd49, "Neoverse-N2"},
    Core{0x41, 0xd4b, "Cortex-A78C"},  Core{0x41, 0xd4d, "Cortex-A715"},
    Core{0x41, 0xd4e, "Cortex-X3"},    Core{0x41, 0xd4f, "Neoverse-V2"},
    Core{0x41, 0xd80, "Cortex-A520"},  Core{0x41, 0xd81, "Cortex-A720"},
    Core{0x41, 0xd82, "Cortex-X4"},    Core{0x41, 0xd84, "Neoverse-V3"},
    Core{0x41, 0xd85, "Cortex-X925"},  Core{0x41, 0xd87, "Cortex-A725"},
    Core{0x41, 0xd8e, "Neoverse-N3"},  Core{0x43, 0x0af, "ThunderX2"},
    Core{0x46, 0x001, "A64FX"},        Core{0x48, 0xd01, "Kunpeng 920"},
    Core{0x4e, 0x004, "Carmel"},       Core{0x51, 0x001, "Oryon"},
    Core{0x61, 0x022, "Apple M1"},     Core{0x61, 0x023, "Apple M1"},
    Core{0x61, 0x032, "Apple M2"},     Core{0x61, 0x033, "Apple M2"},
    Core{0xc0, 0xac3, "Ampere-1"},     Core{0xc0, 0xac4, "Ampere-1A"},
};

// "0x41" -> 65; 0 where it is no such number.
uint32_t hex_number(std::string_view text) {
  uint32_t value = 0;
  if (text.starts_with("0x"))
    std::from_chars(text.data() + 2, text.data() + text.size(), value, 16);
  return value;
}

std::string core_name(const std::string& implementer, const std::string& part) {
  for (const Core& core : kCores)
    if (core.implementer == hex_number(implementer) && core.part == hex_number(part))
      return std::string(core.name);
  return "Arm implementer " + implementer + " part " + part;
}

}  // namespace

std::string cpu_name_in(std::istream& cpuinfo) {
  std::string line, implementer;
  std::vector<std::string> names;  // each once, in order of appearance
  while (std::getline(cpuinfo, line)) {
    const auto colon = line.find(": ");
    if (colon == line.npos) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) return value;
    if (line.starts_with("CPU implementer")) implementer = value;
    if (!line.starts_with("CPU part")) continue;
    const std::string name = core_name(implementer, value);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names.empty() ? "unknown" : fmt::format("{}", fmt::join(names, " + "));
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  return cpu_name_in(file);
}

std::string timestamp() {
  std::time_t now = std::time(nullptr);
  // The last second of the year 9999: what follows has no such form.
  constexpr int64_t kLast = 253402300799;
  if (const char* fixed = std::getenv("SOURCE_DATE_EPOCH")) {
    const std::string_view text = fixed;
    int64_t seconds = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (error == std::errc() && end == text.data() + text.size() && seconds >= 0 &&
        seconds <= kLast)
      now = static_cast<std::time_t>(seconds);
  }
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return {text.data(), size};
}

}  // namespace sluice::impl
