#include "backend/reference/reference.h"

namespace sluice::reference {

std::unique_ptr<KeysAttention> make_keys_attention(const KeysSpec& /*spec*/) {
  SLUICE_CHECK(!"not written yet");
}

}  // namespace sluice::reference
