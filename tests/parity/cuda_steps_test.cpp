// Steps of one token on a device: recordings whose memory has moved, and steps that follow each
// other without a wait, whose kernels may begin before the ones ahead of them are done.

#include "backend/cuda/runtime/device.h"
#include "parity/attend_case.h"
#include "parity/compare.h"
#include "parity/subspace_case.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

double largest_of(const std::vector<float>& values) {
  float largest = 0;
  for (const float x : values) largest = std::max(largest, std::abs(x));
  return largest;
}

// What operations share grows with the largest of them: whatever moved so, no recording is replayed
// into the place that it left.
TEST(CudaSteps, ARecordingIsVoidOnceMemoryHasMoved) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto backend = make_cuda_backend(DType::kBF16);
  const AttendCase c{.n_tokens = 1,
                     .head_dim = 64,
                     .first_position = 699,
                     .n_heads = 8,
                     .n_kv_heads = 8,
                     .room = 20};
  const AttendInputs in(c, DType::kBF16);
  const DeviceTensor queries(*backend, DType::kBF16, c.rows(), in.queries);
  const DeviceTensor keys(*backend, DType::kBF16, c.cache(), in.keys);
  const DeviceTensor values(*backend, DType::kBF16, c.cache(), in.values);
  const DeviceTensor out = unwritten(*backend, DType::kBF16, c.rows());
  const auto attend = [&](int64_t position) {
    backend->attend_dense({.queries = queries.view(),
                           .cache = {keys.view(), values.view()},
                           .n_tokens = 1,
                           .first_position = position,
                           .causal = true,
                           .scale = c.scale(),
                           .out = out.view()});
    return backend->recording() ? std::vector<float>() : out.values();
  };
  const auto linear = [&](int64_t n_in, Activation activation) {
    const auto weights = backend->pack_linear(matrix_source(40, n_in, random_values(40 * n_in, 5)));
    const DeviceTensor x(*backend, DType::kBF16, {100, n_in}, random_values(100 * n_in, 6));
    const DeviceTensor products = unwritten(*backend, DType::kBF16, {100, 40});
    backend->linear({.weights = weights.get(),
                     .x = x.view(),
                     .activation = activation,
                     .out = products.view()});
  };
  struct Mover {
    const char* name;
    std::function<void()> move;
  };
  const Mover movers[] = {
      {"scratch",
       [&] {
         SubspaceCase{4096, 64, 8, orthonormal_rows(8, 64, 3), random_values(4096 * 64, 4)}.project(
             *backend);
       }},
      {"rows that are not aligned", [&] { linear(33, Activation::kNone); }},
      {"sums before an activation", [&] { linear(64, Activation::kGeluErf); }},
      {"counters", [&] {
         const AttendCase many{
             .n_tokens = 1, .head_dim = 64, .n_heads = 8, .n_kv_heads = 8, .n_batch = 130};
         test::attend(*backend, DType::kBF16, many, AttendInputs(many, DType::kBF16));
       }}};
  for (const Mover& mover : movers) {
    SCOPED_TRACE(mover.name);
    const auto at_end = attend(699), before = attend(300);
    const auto recording = backend->recorder()->record([&] { attend(300); });
    ASSERT_NE(recording, nullptr);
    // As many splits as the last position would have, so sums of another order.
    for (const auto& [position, expected] : {std::pair(699, at_end), {300, before}}) {
      ASSERT_TRUE(recording->valid());
      recording->replay(position);
      EXPECT_CLOSE(out.values(), expected, 2 * kBF16Unit * largest_of(expected));
    }
    mover.move();
    EXPECT_FALSE(recording->valid());
    EXPECT_THROW(recording->replay(300), InternalError);
    EXPECT_SAME_BITS(attend(300), before);
  }
}

// Each step looks its rows up, rounds them to where the step before had its own, and attends: the
// same bits as where every operation waits for the one ahead.
TEST(CudaSteps, StepsWithoutWaitsGiveWhatStepsWithThemGive) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto backend = make_cuda_backend(DType::kBF16);
  struct Kind {
    int64_t head_dim, rotary_dim;
    RotaryStyle style;
  };
  const Kind kinds[] = {{64, 0, RotaryStyle::kHalves},
                        {128, 128, RotaryStyle::kHalves},
                        {256, 64, RotaryStyle::kInterleaved},
                        {80, 10, RotaryStyle::kInterleaved}};  // in three kernels
  constexpr int64_t kFirst = 100, kBatch = 2, kHeads = 8, kIds = 50;
  const int64_t n_steps = kFewCases ? 5 : 200;
  for (const Kind& kind : kinds) {
    SCOPED_TRACE(testing::Message() << "heads of " << kind.head_dim);
    const int64_t width = kHeads * kind.head_dim, half = kind.rotary_dim / 2;
    const AttendCase c{.n_tokens = 1,
                       .head_dim = kind.head_dim,
                       .first_position = kFirst - 1,  // filled before the first step
                       .n_heads = kHeads,
                       .n_kv_heads = kHeads,
                       .n_batch = kBatch,
                       .room = n_steps};
    const AttendInputs in(c, DType::kBF16);
    const auto table = backend->make_table(
        matrix_source(kIds, 3 * width, random_values(kIds * 3 * width, 7, DType::kBF16)));
    const Shape angles{c.capacity(), std::max<int64_t>(half, 1)};
    const DeviceTensor cosine(*backend, DType::kF32, angles, random_values(angles.numel(), 8));
    const DeviceTensor sine(*backend, DType::kF32, angles, random_values(angles.numel(), 9));
    struct Result {
      std::vector<float> keys, values, out;
    };
    const auto run = [&](bool wait) -> Result {
      const DeviceTensor keys(*backend, DType::kBF16, c.cache(), in.keys);
      const DeviceTensor values(*backend, DType::kBF16, c.cache(), in.values);
      const DeviceTensor rows = unwritten(*backend, DType::kF32, {kBatch, 3 * width});
      const DeviceTensor qkv = unwritten(*backend, DType::kBF16, {kBatch, 3 * width});
      const DeviceTensor out = unwritten(*backend, DType::kBF16, {n_steps * kBatch, width});
      const auto heads = [&](int64_t first, int64_t n) {
        const Tensor columns = qkv.view().columns_from(first * kind.head_dim, n * kind.head_dim);
        return Tensor(columns.bytes(), columns.dtype(), {kBatch, n, kind.head_dim},
                      columns.device())
            .with_row_stride(3 * width);
      };
      for (int64_t step = 0; step < n_steps; ++step) {
        const int64_t position = kFirst + step;
        const std::vector<int32_t> ids = {static_cast<int32_t>(step * 7 % kIds),
                                          static_cast<int32_t>(step * 3 % kIds)};
        backend->embed({.table = table.get(), .ids = ids, .zero_id = {}, .out = rows.view()});
        if (wait) backend->wait();
        backend->convert(rows.view(), qkv.view());
        if (wait) backend->wait();
        const RotaryArgs rotary{.style = kind.style,
                                .cosine = cosine.view(),
                                .sine = sine.view(),
                                .n_tokens = 1,
                                .first_position = position,
                                .x = heads(0, 2 * kHeads)};
        const Tensor to = out.view().rows_from(step * kBatch, kBatch);
        backend->store_and_attend(
            half > 0 ? &rotary : nullptr,
            {.keys = heads(kHeads, kHeads),
             .values = heads(2 * kHeads, kHeads),
             .n_tokens = 1,
             .first_position = position,
             .cache = {keys.view(), values.view()}},
            {.queries = heads(0, kHeads),
             .cache = {keys.view(), values.view()},
             .n_tokens = 1,
             .first_position = position,
             .causal = true,
             .scale = c.scale(),
             .out = Tensor(to.bytes(), to.dtype(), {kBatch, kHeads, kind.head_dim}, to.device())});
        if (wait) backend->wait();
      }
      return {keys.values(), values.values(), out.values()};
    };
    const Result expected = run(true);
    for (const float x : expected.out) ASSERT_TRUE(std::isfinite(x));
    for (int i = 0; i < (kFewCases ? 1 : 3); ++i) {
      const Result got = run(false);
      EXPECT_SAME_BITS(got.keys, expected.keys);
      EXPECT_SAME_BITS(got.values, expected.values);
      EXPECT_SAME_BITS(got.out, expected.out);
    }
  }
}

}  // namespace
}  // namespace sluice::impl::test
