// The CUDA backend under the tests of this folder, each of which is SKIPPED without a device.

#include "backend/cuda/runtime/device.h"
#include "parity/backends.h"

namespace sluice::impl::test {
namespace {

std::vector<Setup> cuda_setups() {
  const char* missing = cuda::device_count() == 0 ? "no CUDA device" : nullptr;
  return {{"cuda", DType::kF32, make_cuda_backend, missing},
          {"cuda", DType::kBF16, make_cuda_backend, missing}};
}

std::string setup_name(const testing::TestParamInfo<Setup>& test) {
  return test.param.name + ("_" + std::string(dtype_name(test.param.dtype)));
}

INSTANTIATE_TEST_SUITE_P(Parity, EveryBackend, testing::ValuesIn(cuda_setups()), setup_name);
INSTANTIATE_TEST_SUITE_P(Parity, EveryImplementation, testing::ValuesIn(cuda_setups()), setup_name);

}  // namespace
}  // namespace sluice::impl::test
