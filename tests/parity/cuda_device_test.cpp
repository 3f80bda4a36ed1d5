// What a machine or a request lacks is said in one line, with a hint.

#include <gtest/gtest.h>

#include "backend/backend.h"
#include "backend/cuda/device.h"

namespace sluice::test {
namespace {

void expect_complaint(const std::function<void()>& work,
                      const std::vector<const char*>& fragments) {
  try {
    work();
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    const std::string line = error.what();
    for (const char* fragment : fragments)
      EXPECT_NE(line.find(fragment), std::string::npos) << fragment << " is not in: " << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    EXPECT_FALSE(error.hint().empty()) << line;
  }
}

TEST(CudaDevice, AMachineWithoutOneSaysSo) {
  if (cuda::device_count() > 0) GTEST_SKIP() << "there is a CUDA device";
  expect_complaint([] { make_cuda_backend(DType::kBF16); }, {"CUDA"});
}

TEST(CudaDevice, MemoryThatIsNotThereIsRefused) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto backend = make_cuda_backend(DType::kBF16);
  expect_complaint([&] { backend->allocate(DType::kF32, {int64_t{1} << 42}); },
                   {"cannot allocate 16777216 MiB", "are free"});
  // And nothing is broken by it.
  const Buffer some = backend->allocate(DType::kF32, {1024});
  std::vector<float> host(1024, 1.0f);
  backend->download(some.view(), Tensor(host.data(), DType::kF32, {1024}));
  EXPECT_EQ(host, std::vector<float>(1024, 0.0f));
}

TEST(CudaDevice, HeadsThatAreTooWideAreRefused) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto backend = make_cuda_backend(DType::kBF16);
  const Shape heads = {1, 1, 264};
  const Buffer rows = backend->allocate(DType::kBF16, heads);
  const Buffer cache = backend->allocate(DType::kBF16, {1, 1, 4, 264});
  const Buffer out = backend->allocate(DType::kBF16, heads);
  expect_complaint(
      [&] {
        backend->attend_dense({.queries = rows.view(),
                               .cache = {cache.view(), cache.view()},
                               .n_tokens = 1,
                               .first_position = 0,
                               .causal = true,
                               .scale = 1,
                               .out = out.view()});
      },
      {"heads of 264", "256"});
}

}  // namespace
}  // namespace sluice::test
