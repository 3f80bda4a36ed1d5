// The backends and dtypes that every test of this folder runs on.

#include "parity/backends.h"

namespace sluice::test {
namespace {

std::string setup_name(const testing::TestParamInfo<Setup>& test) {
  return test.param.name + ("_" + std::string(dtype_name(test.param.dtype)));
}

INSTANTIATE_TEST_SUITE_P(Parity, EveryBackend,
                         testing::Values(Setup{"cpu", DType::kF32, make_cpu_backend},
                                         Setup{"cpu", DType::kBF16, make_cpu_backend}),
                         setup_name);

INSTANTIATE_TEST_SUITE_P(Parity, EveryImplementation,
                         testing::Values(Setup{"reference", DType::kF32, make_reference_backend},
                                         Setup{"reference", DType::kBF16, make_reference_backend},
                                         Setup{"cpu", DType::kF32, make_cpu_backend},
                                         Setup{"cpu", DType::kBF16, make_cpu_backend}),
                         setup_name);

}  // namespace
}  // namespace sluice::test
