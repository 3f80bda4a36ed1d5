// Attention of one query, over few keys and many: the kernel of decoding against the plain one,
// which attend_dense_test.cpp compares with the reference.

#include "parity/compare.h"
#include "parity/cuda_attend_kernel.h"

namespace sluice::test {
namespace {

// Keys of one load and less, of one block and of many, and windows that begin between; every width
// of a group of lanes, full and not.
TEST(CudaDecode, OneQueryGivesWhatThePlainKernelGives) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto backend = make_cuda_backend(DType::kBF16);
  const auto context = std::make_shared<cuda::Context>(0);
  for (const int64_t head_dim : {8, 64, 80, 96, 128, 200, 256})
    for (const int64_t n_keys : {1, 3, 33, 130, 700, 9001})
      for (const int64_t window : {0, 100}) {
        const AttendCase c{.n_tokens = 1,
                           .head_dim = head_dim,
                           .first_position = n_keys - 1,
                           .n_heads = n_keys == 700 ? 40 : 3,
                           .n_kv_heads = n_keys == 700 ? 40 : 3,
                           .n_batch = 2,
                           .window = window,
                           .pad = 8,
                           .size = n_keys == 33 ? 30.0f : 3.0f};
        SCOPED_TRACE(testing::PrintToString(c));
        const AttendInputs in(c, DType::kBF16);
        const auto run = [&](const Kernel& kernel) {
          return run_kernel(*backend, c, in, [&](const cuda::AttendView& view) {
            kernel(view);
            context->synchronize();
          });
        };
        const auto expected =
            run([&](const auto& view) { cuda::attend_plain(*context, DType::kBF16, view); });
        // Both are f32 but for the last rounding.
        float largest = 0;
        for (const float x : expected) largest = std::max(largest, std::abs(x));
        for (int turn = 0; turn < 2; ++turn)
          EXPECT_CLOSE(run([&](const auto& view) { cuda::attend_one(*context, view); }), expected,
                       2 * kBF16Unit * largest);
      }
}

// What is recorded finds its position on the device, and has as many splits as the last position
// would have: most of them without a key at the first ones.
TEST(CudaDecode, RecordedPositionsAreReadOnTheDevice) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto backend = make_cuda_backend(DType::kBF16);
  const auto context = std::make_shared<cuda::Context>(0);
  for (const int64_t group : {1, 4})
    for (const int64_t n_keys : {1, 2, 40, 700})
      for (const int64_t window : {0, 16}) {
        const AttendCase c{.n_tokens = 1,
                           .head_dim = 64,
                           .first_position = n_keys - 1,
                           .n_heads = 8,
                           .n_kv_heads = 8 / group,
                           .n_batch = 3,
                           .window = window,
                           .room = 2000};
        SCOPED_TRACE(testing::PrintToString(c));
        const AttendInputs in(c, DType::kBF16);
        const auto position = static_cast<int32_t>(c.first_position);
        const cuda::DeviceArray<int32_t> recorded(context, std::span(&position, 1));
        const auto attend = group == 1 ? cuda::attend_one : cuda::attend_split;
        const auto run = [&](bool by_recording) {
          return run_kernel(*backend, c, in, [&](cuda::AttendView view) {
            if (by_recording) {
              view.first_position = 1500;
              context->record_at(recorded.data());
            }
            attend(*context, view);
            context->record_at(nullptr);
            context->synchronize();
          });
        };
        const auto expected = run(false);
        float largest = 0;
        for (const float x : expected) largest = std::max(largest, std::abs(x));
        EXPECT_CLOSE(run(true), expected, 2 * kBF16Unit * largest);
      }
}

}  // namespace
}  // namespace sluice::test
