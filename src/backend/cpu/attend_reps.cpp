#include "backend/cpu/attend_reps.h"

namespace sluice::cpu {

std::unique_ptr<RepsAttention> make_reps_attention(const RepsSpec& /*spec*/) {
  SLUICE_CHECK(!"not written yet");
}

}  // namespace sluice::cpu
