// The backends and dtypes that every test of this folder runs on.

#include "parity/backends.h"

#include "sanitized.h"

namespace sluice::impl::test {
namespace {

std::string setup_name(const testing::TestParamInfo<Setup>& test) {
  return test.param.name + ("_" + std::string(dtype_name(test.param.dtype)));
}

INSTANTIATE_TEST_SUITE_P(Parity, EveryBackend,
                         testing::Values(Setup{"cpu", DType::kF32, make_cpu_backend},
                                         Setup{"cpu", DType::kBF16, make_cpu_backend}),
                         setup_name);

// Under a sanitizer the reference is slow; there it runs as what others are compared with.
std::vector<Setup> implementations() {
  std::vector<Setup> all = {{"cpu", DType::kF32, make_cpu_backend},
                            {"cpu", DType::kBF16, make_cpu_backend}};
  if (!kSanitized) all.push_back({"reference", DType::kF32, make_reference_backend});
  // Its loops read bf16 through the conversions that the CPU's tests compare; half as long again
  // for that.
  if (kLongTests) all.push_back({"reference", DType::kBF16, make_reference_backend});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Parity, EveryImplementation, testing::ValuesIn(implementations()),
                         setup_name);

}  // namespace
}  // namespace sluice::impl::test
