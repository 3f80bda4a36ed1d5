#include "core/error.h"

#include <string_view>

namespace sluice {

void fail_check(const char* expression, const char* file, int line) {
  std::string_view name(file);
  if (const auto slash = name.rfind('/'); slash != name.npos) name.remove_prefix(slash + 1);
  throw InternalError("internal check failed: " + std::string(expression) + " (" +
                      std::string(name) + ":" + std::to_string(line) + ")");
}

}  // namespace sluice
