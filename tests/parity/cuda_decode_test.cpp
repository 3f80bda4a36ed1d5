// Attention of one query, over few keys and many: the kernel of decoding against the plain one,
// which attend_dense_test.cpp compares with the reference; and with what comes before it in one.

#include "parity/compare.h"
#include "parity/cuda_attend_kernel.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

// Keys of one load and less, of one block and of many, and windows that begin between; every width
// of a group of lanes, full and not.
TEST(CudaDecode, OneQueryGivesWhatThePlainKernelGives) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto backend = make_cuda_backend(DType::kBF16);
  const auto context = std::make_shared<cuda::Context>(0);
  for (const int64_t head_dim : thinned({8, 64, 80, 96, 128, 200, 256}, 3))
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
          return run_kernel(*backend, c, in, [&](const cuda::dense::AttendView& view) {
            kernel(view);
            context->synchronize();
          });
        };
        const auto expected =
            run([&](const auto& view) { cuda::dense::attend_plain(*context, DType::kBF16, view); });
        // Both are f32 but for the last rounding.
        float largest = 0;
        for (const float x : expected) largest = std::max(largest, std::abs(x));
        for (int run_index = 0; run_index < 2; ++run_index)
          EXPECT_CLOSE(run([&](const auto& view) { cuda::dense::attend_one(*context, view); }),
                       expected, 2 * kBF16Unit * largest);
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
        const auto attend = group == 1 ? cuda::dense::attend_one : cuda::dense::attend_split;
        const auto run = [&](bool by_recording) {
          return run_kernel(*backend, c, in, [&](cuda::dense::AttendView view) {
            if (by_recording) {
              view.first_position = 1500;
              context->record_at(recorded.data(), 1);
            }
            attend(*context, view);
            context->record_at(nullptr, 0);
            context->synchronize();
          });
        };
        const auto expected = run(false);
        float largest = 0;
        for (const float x : expected) largest = std::max(largest, std::abs(x));
        EXPECT_CLOSE(run(true), expected, 2 * kBF16Unit * largest);
      }
}

// A token is rotated, stored and attended to in one kernel, or in three where one cannot do it.
TEST(CudaDecode, NextTokensAreRotatedStoredAndSeen) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto backend = make_cuda_backend(DType::kBF16);
  struct Kind {
    int64_t head_dim, rotary_dim;
    RotaryStyle style;
  };
  const Kind kinds[] = {{64, 0, RotaryStyle::kHalves},        {64, 64, RotaryStyle::kHalves},
                        {80, 32, RotaryStyle::kHalves},       {128, 128, RotaryStyle::kHalves},
                        {256, 64, RotaryStyle::kInterleaved}, {96, 40, RotaryStyle::kInterleaved},
                        {96, 24, RotaryStyle::kHalves},       {80, 10, RotaryStyle::kInterleaved}};
  for (const Kind& kind : kinds)
    for (const int64_t n_keys : thinned({1, 2, 33, 700}, 3))
      for (const int64_t window : {0, 16}) {
        const AttendCase c{.n_tokens = 1,
                           .head_dim = kind.head_dim,
                           .first_position = n_keys - 1,
                           .n_heads = 3,
                           .n_kv_heads = 3,
                           .n_batch = 2,
                           .window = window};
        SCOPED_TRACE(testing::PrintToString(c));
        AttendInputs in(c, DType::kBF16);
        for (auto* part : {&in.keys, &in.values})  // not stored yet
          for (int64_t head = 0; head < c.n_batch * c.n_heads; ++head)
            std::fill_n(part->begin() + static_cast<int64_t>(c.cache_at(0, head, n_keys - 1)),
                        c.head_dim, NAN);
        const int64_t width = c.n_heads * c.head_dim, half = kind.rotary_dim / 2;
        const auto rows = random_values(c.n_batch * 3 * width, 7, DType::kBF16);
        const Shape angles{n_keys, std::max<int64_t>(half, 1)};
        const DeviceTensor cosine(*backend, DType::kF32, angles, random_values(angles.numel(), 8));
        const DeviceTensor sine(*backend, DType::kF32, angles, random_values(angles.numel(), 9));
        struct Result {
          std::vector<float> keys, values, out;
        };
        const auto run = [&](bool at_once) -> Result {
          const DeviceTensor qkv(*backend, DType::kBF16, {c.n_batch, 3 * width}, rows);
          const auto heads = [&](int64_t first, int64_t n) {
            const Tensor columns = qkv.view().columns_from(first * c.head_dim, n * c.head_dim);
            return Tensor(columns.bytes(), columns.dtype(), {c.n_batch, n, c.head_dim},
                          columns.device())
                .with_row_stride(3 * width);
          };
          const DeviceTensor keys(*backend, DType::kBF16, c.cache(), in.keys);
          const DeviceTensor values(*backend, DType::kBF16, c.cache(), in.values);
          const DeviceTensor out = unwritten(*backend, DType::kBF16, c.rows());
          const RotaryArgs rotary{.style = kind.style,
                                  .cosine = cosine.view(),
                                  .sine = sine.view(),
                                  .n_tokens = 1,
                                  .first_position = c.first_position,
                                  .x = heads(0, 2 * c.n_heads)};
          const StoreKvArgs store{.keys = heads(c.n_heads, c.n_heads),
                                  .values = heads(2 * c.n_heads, c.n_heads),
                                  .n_tokens = 1,
                                  .first_position = c.first_position,
                                  .cache = {keys.view(), values.view()}};
          const AttendDenseArgs attend{.queries = heads(0, c.n_heads),
                                       .cache = {keys.view(), values.view()},
                                       .n_tokens = 1,
                                       .first_position = c.first_position,
                                       .causal = true,
                                       .window = window,
                                       .scale = c.scale(),
                                       .out = out.view()};
          if (at_once) {
            backend->store_and_attend(half > 0 ? &rotary : nullptr, store, attend);
          } else {
            if (half > 0) backend->rotate(rotary);
            backend->store_kv(store);
            backend->attend_dense(attend);
          }
          return {keys.values(), values.values(), out.values()};
        };
        const Result got = run(true), expected = run(false);
        EXPECT_SAME_BITS(got.keys, expected.keys);
        EXPECT_SAME_BITS(got.values, expected.values);
        float largest = 0;
        for (const float x : expected.out) largest = std::max(largest, std::abs(x));
        EXPECT_CLOSE(got.out, expected.out, 2 * kBF16Unit * largest);
      }
}

}  // namespace
}  // namespace sluice::impl::test
