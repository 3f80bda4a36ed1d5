#include "backend/cpu/selector.h"

namespace sluice::cpu {

std::unique_ptr<Selector> make_selector(const SelectorSpec& /*spec*/) {
  SLUICE_CHECK(!"not written yet");
}

}  // namespace sluice::cpu
