// The cases of this folder on the backends of the host.

#include "sanitized.h"
#include "unit/model/family_models.h"

namespace sluice::impl::test {

// The reference takes minutes under a sanitizer; the parity tests run it there.
std::vector<ModelSetup> family_setups() {
  std::vector<ModelSetup> all = kModelSetups;
  if (kSanitized) std::erase_if(all, [](const ModelSetup& s) { return s.is_reference(); });
  return all;
}

}  // namespace sluice::impl::test
