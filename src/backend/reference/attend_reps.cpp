#include "backend/reference/reference.h"

namespace sluice::reference {

std::unique_ptr<RepsAttention> make_reps_attention(const RepsSpec& /*spec*/) {
  SLUICE_CHECK(!"not written yet");
}

}  // namespace sluice::reference
