// The cases of unit/model that are not of the host alone on a CUDA device, each of which is SKIPPED
// without one.

#include "backend/cuda/runtime/device.h"
#include "sanitized.h"
#include "unit/model/family_models.h"

namespace sluice::impl::test {

std::vector<ModelSetup> family_setups() {
  const char* missing = cuda::device_count() == 0 ? "no CUDA device" : nullptr;
  std::vector<ModelSetup> all = {{"cuda", DType::kBF16, make_cuda_backend, missing}};
  if (!kFewCases) all.insert(all.begin(), {"cuda", DType::kF32, make_cuda_backend, missing});
  return all;
}

}  // namespace sluice::impl::test
