#include "core/peak_memory.h"

#include <sys/resource.h>

namespace sluice::impl {

int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;  // KiB on Linux
}

}  // namespace sluice::impl
