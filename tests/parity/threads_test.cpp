// The number of threads does not change a bit of any result.

#include "parity/refine_case.h"
#include "parity/select_cases.h"

namespace sluice::impl::test {
namespace {

// Large enough that every operation is worth more than one thread.
constexpr int64_t kRows = 129, kWidth = 320;

template <typename Run>
void expect_same_with_two_threads(const Run& run) {
  set_threads(1);
  const std::vector<float> one = run();
  for (const int count : {2, 3}) {
    set_threads(count);
    EXPECT_SAME_BITS(run(), one) << count << " threads";
  }
}

TEST_P(EveryBackend, EmbedDoesNotDependOnThreads) {
  expect_same_with_two_threads([&] {
    const auto table =
        backend->make_table(matrix_source(kRows, kWidth, random_values(kRows * kWidth, 1)));
    std::vector<int32_t> ids(kRows);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % kRows);
    const DeviceTensor out = unwritten(*backend, DType::kF32, {kRows, kWidth});
    backend->embed(
        {.table = table.get(), .ids = ids, .scale = 0.7f, .zero_id = 4, .out = out.view()});
    return out.values();
  });
}

// Odd widths too: the end of one thread's last row shares a vector with the next thread's first.
TEST_P(EveryBackend, NormDoesNotDependOnThreads) {
  for (const NormKind kind : {NormKind::kLayer, NormKind::kRms})
    for (const int64_t d : {kWidth, kWidth + 1})
      expect_same_with_two_threads([&] {
        const DeviceTensor x(*backend, DType::kF32, {kRows, d}, random_values(kRows * d, 1));
        const DeviceTensor out = unwritten(*backend, dtype(), {kRows, d});
        backend->norm({.kind = kind,
                       .epsilon = 1e-5f,
                       .x = x.view(),
                       .weight = {},
                       .bias = {},
                       .out = out.view()});
        return out.values();
      });
}

TEST_P(EveryBackend, LinearDoesNotDependOnThreads) {
  for (const int64_t rows : {1, 2, 9, 17, 40, 129, 257})
    for (const int64_t n_out : {5, 193})
      expect_same_with_two_threads([&] {
        SCOPED_TRACE(testing::Message() << rows << " rows, " << n_out << " columns");
        const auto weights = backend->pack_linear(matrix_source(
            n_out, kWidth, random_values(n_out * kWidth, 1), random_values(n_out, 2)));
        const DeviceTensor x(*backend, dtype(), {rows, kWidth}, random_values(rows * kWidth, 3));
        const DeviceTensor out = unwritten(*backend, DType::kF32, {rows, n_out});
        backend->linear({.weights = weights.get(),
                         .x = x.view(),
                         .activation = Activation::kSilu,
                         .out = out.view()});
        return out.values();
      });
}

TEST_P(EveryBackend, RotateDoesNotDependOnThreads) {
  for (const RotaryStyle style : {RotaryStyle::kHalves, RotaryStyle::kInterleaved})
    expect_same_with_two_threads([&] {
      const DeviceTensor cosine(*backend, DType::kF32, {kRows, 32}, random_values(kRows * 32, 1));
      const DeviceTensor sine(*backend, DType::kF32, {kRows, 32}, random_values(kRows * 32, 2));
      const DeviceTensor x(*backend, dtype(), {kRows, 5, 64}, random_values(kRows * kWidth, 3));
      backend->rotate({.style = style,
                       .cosine = cosine.view(),
                       .sine = sine.view(),
                       .n_tokens = kRows,
                       .first_position = 0,
                       .x = x.view()});
      return x.values();
    });
}

TEST_P(EveryBackend, StoreKvDoesNotDependOnThreads) {
  expect_same_with_two_threads([&] {
    const auto numbers = random_values(kRows * kWidth, 1);
    const DeviceTensor rows(*backend, dtype(), {kRows, 5, 64}, numbers);
    const DeviceTensor keys(*backend, dtype(), {1, 5, kRows, 64}, numbers);
    const DeviceTensor values(*backend, dtype(), {1, 5, kRows, 64}, numbers);
    backend->store_kv({.keys = rows.view(),
                       .values = rows.view(),
                       .n_tokens = kRows,
                       .first_position = 0,
                       .cache = {keys.view(), values.view()}});
    return keys.values();
  });
}

TEST_P(EveryBackend, DenseAttentionDoesNotDependOnThreads) {
  const AttendCase cases[] = {
      {.n_tokens = 1, .head_dim = 64, .first_position = 300, .n_heads = 4, .n_kv_heads = 4},
      {.n_tokens = 5, .head_dim = 64, .first_position = 100, .n_heads = 4, .n_kv_heads = 1},
      {.n_tokens = 137, .head_dim = 80, .n_heads = 4, .n_kv_heads = 2, .n_batch = 2},
      {.n_tokens = 129, .head_dim = 64, .first_position = 37, .causal = false, .window = 60}};
  for (const AttendCase& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c));
    const AttendInputs in(c, dtype());
    expect_same_with_two_threads([&] { return attend(*backend, dtype(), c, in); });
  }
}

// One head, so that threads share it; as many as threads; blocks that do not divide anything.
TEST_P(EveryBackend, KeysAttentionDoesNotDependOnThreads) {
  const KeysCase cases[] = {
      {.n_tokens = 5, .head_dim = 64, .n_heads = 4},
      {.n_tokens = 300, .head_dim = 64, .n_heads = 1, .n_kv_heads = 1},
      {.n_tokens = 300, .head_dim = 80, .n_heads = 4, .window = 21, .block = 7},
      {.n_tokens = 300, .head_dim = 16, .n_heads = 3, .n_kv_heads = 3, .causal = false}};
  for (const KeysCase& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c));
    const KeysInputs in(c, dtype());
    expect_same_with_two_threads([&] { return attend_keys(*backend, dtype(), c, in); });
  }
}

TEST_P(EveryBackend, RefineAttentionDoesNotDependOnThreads) {
  const RefineCase cases[] = {
      {.n_tokens = 300, .head_dim = 64, .n_heads = 4},
      {.n_tokens = 300, .head_dim = 80, .n_heads = 3, .n_kv_heads = 1, .segment = 64, .tile = 1},
      {.n_tokens = 300, .head_dim = 16, .causal = false}};
  for (const RefineCase& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c));
    const RefineInputs in(c, dtype());
    expect_same_with_two_threads(
        [&] { return attend_refine(*backend, dtype(), dtype(), c, in)->out; });
  }
}

// As many threads as cut a block's rows as well as its columns.
TEST_P(EveryBackend, SelectionDoesNotDependOnThreads) {
  const SelectCase c{RowKind::kClusters, 900, 193, 0.5, 3};
  for (const SelectRule rule : kAllRules) {
    const SelectInputs in = select_inputs(c, dtype(), rule, {0.5, 0.7});
    set_threads(1);
    const auto one = select(*backend, dtype(), in);
    for (const int count : {2, 9}) {
      set_threads(count);
      EXPECT_TRUE(same_sets(select(*backend, dtype(), in), one)) << count << " threads";
    }
  }
}

TEST_P(EveryBackend, GateDoesNotDependOnThreads) {
  for (const int64_t d : {kWidth, kWidth + 3})
    expect_same_with_two_threads([&] {
      const DeviceTensor x(*backend, dtype(), {kRows, 2 * d}, random_values(kRows * 2 * d, 1));
      const DeviceTensor out = unwritten(*backend, dtype(), {kRows, d});
      backend->glu({.activation = Activation::kGeluTanh, .gate_up = x.view(), .out = out.view()});
      return out.values();
    });
}

TEST_P(EveryBackend, ConvertDoesNotDependOnThreads) {
  expect_same_with_two_threads([&] {
    const DeviceTensor x(*backend, DType::kF32, {kRows, kWidth}, random_values(kRows * kWidth, 1));
    const DeviceTensor out = unwritten(*backend, dtype(), {kRows, kWidth});
    backend->convert(x.view(), out.view());
    return out.values();
  });
}

}  // namespace
}  // namespace sluice::impl::test
