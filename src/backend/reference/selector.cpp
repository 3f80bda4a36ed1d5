#include "backend/reference/reference.h"

namespace sluice::reference {

std::unique_ptr<Selector> make_selector(const SelectorSpec& /*spec*/) {
  SLUICE_CHECK(!"not written yet");
}

}  // namespace sluice::reference
