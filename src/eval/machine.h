// What a results file says of where and when it was made: the processor's name, and the time.

#pragma once

#include <iosfwd>
#include <string>

namespace sluice::impl {

// The processor's name from a text of the form of /proc/cpuinfo: as the system tells it (x86), else
// of the cores by their numbers (Arm: "Neoverse-V1"; "Cortex-A720 + Cortex-X4" where there are
// several kinds), else these numbers, else "unknown".
std::string cpu_name_in(std::istream& cpuinfo);
// Of this machine.
std::string cpu_name();

// Now in UTC: "2026-01-31T12:00:00Z". Where the environment has SOURCE_DATE_EPOCH, a whole number
// of seconds since 1970, that time.
std::string timestamp();

}  // namespace sluice::impl
