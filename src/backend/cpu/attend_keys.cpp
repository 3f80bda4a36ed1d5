#include "backend/cpu/attend_keys.h"

namespace sluice::cpu {

std::unique_ptr<KeysAttention> make_keys_attention(const KeysSpec& /*spec*/) {
  SLUICE_CHECK(!"not written yet");
}

}  // namespace sluice::cpu
