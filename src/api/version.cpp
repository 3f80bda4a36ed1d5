#include "sluice/version.h"

namespace sluice {

const char* version() noexcept { return SLUICE_VERSION; }

}  // namespace sluice
