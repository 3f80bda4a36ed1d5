// The attention kernels that one call does not choose on every device, and sequences of many tiles,
// which the reference is too slow for: each against the plain kernel, which attend_dense_test.cpp
// compares with the reference.

#include "parity/cuda_attend_kernel.h"

namespace sluice::impl::test {
namespace {

class CudaAttention : public testing::TestWithParam<AttendCase> {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

// Weights and results are rounded to bf16, by up to 2^-8 and less than 2^-9 in the root mean
// square, independently of each other: three such errors (the other result's is one) stay below
// 2^-8 of the whole, NaN and a lost tile do not.
TEST_P(CudaAttention, EveryKernelGivesWhatThePlainOneGives) {
  const AttendCase& c = GetParam();
  const auto backend = make_cuda_backend(DType::kBF16);
  const auto context = std::make_shared<cuda::Context>(0);
  const AttendInputs in(c, DType::kBF16);
  const auto with = [&](const Kernel& kernel) {
    return run_kernel(*backend, c, in, [&](const cuda::dense::AttendView& view) {
      kernel(view);
      context->synchronize();
    });
  };
  const auto expected = with([&](const cuda::dense::AttendView& view) {
    cuda::dense::attend_plain(*context, DType::kBF16, view);
  });
  EXPECT_LE(
      relative_distance(with([&](const auto& view) { cuda::dense::attend_tiles(*context, view); }),
                        expected),
      0x1p-8);
  if (context->compute_capability() == 90) {
    EXPECT_LE(
        relative_distance(
            with([&](const auto& view) { cuda::dense::attend_hopper(*context, view); }), expected),
        0x1p-8);
  }
  if (c.n_tokens <= 64) {
    EXPECT_LE(
        relative_distance(
            with([&](const auto& view) { cuda::dense::attend_split(*context, view); }), expected),
        0x1p-8);
  }
}

const AttendCase kCases[] = {
    {.n_tokens = 1, .head_dim = 128, .first_position = 4000, .n_heads = 8, .n_kv_heads = 2},
    {.n_tokens = 1, .head_dim = 256, .first_position = 8191, .n_heads = 2, .n_batch = 2},
    {.n_tokens = 1, .head_dim = 64, .first_position = 3000, .window = 1000},
    {.n_tokens = 5, .head_dim = 80, .first_position = 1003, .n_heads = 20, .n_kv_heads = 4},
    {.n_tokens = 64, .head_dim = 96, .first_position = 2000},
    {.n_tokens = 1000, .head_dim = 64, .n_batch = 2},
    {.n_tokens = 1000, .head_dim = 128, .n_heads = 4, .n_kv_heads = 2},
    {.n_tokens = 1000, .head_dim = 256},
    {.n_tokens = 1031, .head_dim = 80, .causal = false},
    {.n_tokens = 517, .head_dim = 96, .first_position = 1500},
    {.n_tokens = 700, .head_dim = 128, .first_position = 333, .window = 257},
    {.n_tokens = 640, .head_dim = 256, .first_position = 128, .causal = false},
    {.n_tokens = 2048, .head_dim = 128, .pad = 8},
    {.n_tokens = 129, .head_dim = 8, .size = 20},
};

INSTANTIATE_TEST_SUITE_P(Cases, CudaAttention, testing::ValuesIn(kCases));

}  // namespace
}  // namespace sluice::impl::test
