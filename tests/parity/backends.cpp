// The backends and dtypes that every test of this folder runs on.

#include "parity/backends.h"

namespace sluice::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Parity, EveryBackend,
                         testing::Values(Setup{"cpu", DType::kF32, make_cpu_backend},
                                         Setup{"cpu", DType::kBF16, make_cpu_backend}),
                         [](const testing::TestParamInfo<Setup>& test) {
                           return test.param.name +
                                  ("_" + std::string(dtype_name(test.param.dtype)));
                         });

}  // namespace
}  // namespace sluice::test
