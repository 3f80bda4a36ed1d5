// The operations on rows against the reference: copies, embed, gate, convert, rotate, store_kv.

#include "parity/backends.h"
#include "parity/compare.h"

namespace sluice::impl::test {
namespace {

constexpr int64_t kWidths[] = {1, 3, 17, 64, 192, 320};
constexpr Activation kActivations[] = {Activation::kNone, Activation::kRelu, Activation::kGeluErf,
                                       Activation::kGeluTanh, Activation::kSilu};

// Values of a host tensor row after row, as floats.
std::vector<float> host_values(const ConstTensor& x) {
  std::vector<float> out;
  for (int64_t row = 0; row < x.rows(); ++row)
    for (int64_t i = 0; i < x.row_elements(); ++i)
      out.push_back(x.dtype() == DType::kBF16 ? to_float(x.row<BFloat16>(row)[i])
                                              : x.row<float>(row)[i]);
  return out;
}

// Columns of a tensor, down to host memory and up from it, where either may have a stride: the
// other columns stay as they were. The widest rows are larger than what is sent at a time.
TEST_P(EveryBackend, ColumnsGoUpAndDown) {
  struct Case {
    int64_t rows, width, first, n;
  };
  for (const Case& c : {Case{5, 17, 3, 7},
                        {1, 17, 3, 7},
                        {0, 17, 3, 7},
                        {5, 17, 3, 0},
                        {3, 17, 0, 17},
                        {2, 700003, 2, 700000}}) {
    SCOPED_TRACE(testing::Message()
                 << c.rows << " rows of " << c.width << ", " << c.n << " from " << c.first);
    const DeviceTensor all(*backend, dtype(), {c.rows, c.width},
                           random_values(c.rows * c.width, 1, dtype()));
    const auto before = all.values();
    const Tensor columns = all.view().columns_from(c.first, c.n);
    const auto part_of = [&](const std::vector<float>& whole, int64_t first, int64_t width) {
      std::vector<float> part;
      for (int64_t row = 0; row < c.rows; ++row)
        part.insert(part.end(), whole.begin() + row * width + first,
                    whole.begin() + row * width + first + c.n);
      return part;
    };
    const Buffer plain = host_buffer(dtype(), {c.rows, c.n});
    backend->download(columns, plain.view());
    EXPECT_SAME_BITS(host_values(plain.view()), part_of(before, c.first, c.width));

    // Into columns of a wider host tensor, and up again from others of it.
    const Buffer wide = host_buffer(dtype(), {c.rows, c.n + 5});
    const auto filling = random_values(c.rows * (c.n + 5), 2, dtype());
    const DeviceTensor fill(*backend, dtype(), {c.rows, c.n + 5}, filling);
    backend->download(fill.view(), wide.view());
    EXPECT_SAME_BITS(host_values(wide.view()), filling);
    backend->download(columns, wide.view().columns_from(2, c.n));
    auto expected = filling;
    for (int64_t row = 0; row < c.rows; ++row)
      std::copy_n(before.begin() + row * c.width + c.first, c.n,
                  expected.begin() + row * (c.n + 5) + 2);
    EXPECT_SAME_BITS(host_values(wide.view()), expected);

    backend->upload(wide.view().columns_from(5, c.n), columns);
    auto after = before;
    const auto sent = part_of(expected, 5, c.n + 5);
    for (int64_t row = 0; row < c.rows; ++row)
      std::copy_n(sent.begin() + row * c.n, c.n, after.begin() + row * c.width + c.first);
    EXPECT_SAME_BITS(all.values(), after);
  }
}

TEST_P(EveryBackend, EmbedIsTheReferenceToTheLastBit) {
  struct Case {
    float scale = 1;
    std::optional<int32_t> zero_id = {};
    bool accumulate = false;
    int64_t pad = 0;
  };
  const Case cases[] = {{},
                        {.scale = 0.88f},
                        {.scale = 1.1f, .zero_id = 3},
                        {.zero_id = 3, .accumulate = true},
                        {.scale = 0.3f, .accumulate = true, .pad = 5}};
  const std::vector<int32_t> ids = {0, 3, 10, 3, 1, 9, 10};
  for (const int64_t d : kWidths)
    for (const Case& c : cases) {
      SCOPED_TRACE(testing::Message()
                   << "width " << d << ", scale " << c.scale << ", accumulate " << c.accumulate);
      const auto run = [&](Backend& on) {
        const auto table = on.make_table(matrix_source(11, d, random_values(11 * d, 1)));
        const DeviceTensor out(on, DType::kF32, {7, d}, random_values(7 * d, 2), c.pad);
        on.embed({.table = table.get(),
                  .ids = ids,
                  .scale = c.scale,
                  .zero_id = c.zero_id,
                  .accumulate = c.accumulate,
                  .out = out.view()});
        return out.values();
      };
      EXPECT_SAME_BITS(run(*backend), run(*reference));
    }
}

// Large and small arguments too: an overflowing exp must not reach the result.
std::vector<float> activation_inputs(int64_t n, uint32_t seed, DType dtype) {
  auto x = random_values(n, seed, dtype, 6.0f);
  const float special[] = {0,      -0.0f,  1e-30f, -1e-30f, 12,     -12,   -15,     15,
                           -19.7f, 30,     -40,    -88,     -89,    -100,  -104.5f, -150,
                           -179,   -200,   -300,   -1000,   1000,   -1e5f, 1e5f,    -3e12f,
                           3e12f,  -1e15f, 1e15f,  88.8f,   104.5f, 200,   1e-5f,   -1e-5f};
  for (size_t i = 0; i < std::size(special) && static_cast<int64_t>(i) < n; ++i)
    x[i] = rounded(dtype, special[i]);
  return x;
}

TEST_P(EveryBackend, GateAgreesWithTheReference) {
  for (const int64_t d : kWidths)
    for (const Activation activation : kActivations)
      for (const int64_t pad : {0, 5}) {
        const int64_t rows = d > 100 ? 2 : 37;
        SCOPED_TRACE(testing::Message()
                     << "width " << d << ", activation " << static_cast<int>(activation));
        const auto gates = activation_inputs(rows * d, 1, dtype());
        const auto ups = random_values(rows * d, 2, dtype());
        std::vector<float> gate_up;
        for (int64_t r = 0; r < rows; ++r)
          for (const auto* part : {&gates, &ups})
            gate_up.insert(gate_up.end(), part->begin() + r * d, part->begin() + (r + 1) * d);
        const auto run = [&](Backend& on, DType type) {
          const DeviceTensor x(on, type, {rows, 2 * d}, gate_up, pad);
          const DeviceTensor out = unwritten(on, type, {rows, d}, pad);
          on.glu({.activation = activation, .gate_up = x.view(), .out = out.view()});
          return out.values();
        };
        const auto expected = run(*reference, DType::kF32);
        std::vector<double> bound;
        for (size_t i = 0; i < expected.size(); ++i) {
          const double error = std::abs(ups[i]) * activation_error(activation, gates[i]);
          // One rounding of the activation, one of the product; results below the normal numbers
          // of f32 may be flushed to zero.
          bound.push_back(stored_error(dtype(), expected[i],
                                       error + 2 * kF32Unit * std::abs(double{expected[i]})) +
                          0x1p-126);
        }
        EXPECT_CLOSE(run(*backend, dtype()), expected, bound);
      }
}

// tanh comes from its series up to 0.45, with an error relative to it, and from exp beyond.
TEST_P(EveryBackend, SoftCapsAgreeWithTheReference) {
  for (const float cap : {0.5f, 30.0f, 50.0f}) {
    std::vector<float> x = random_values(2 * 331, 5, DType::kF32, cap);
    for (size_t i = 0; i < x.size(); i += 3) x[i] *= 1e-4f;
    x[0] = 0;
    x[1] = 1e6f;
    x[2] = -1e6f;
    x[4] = 0.45f * cap;
    const auto run = [&](Backend& on) {
      const DeviceTensor rows(on, DType::kF32, {2, 331}, x);
      on.soft_cap(cap, rows.view());
      return rows.values();
    };
    const auto expected = run(*reference);
    std::vector<double> bound;
    for (size_t i = 0; i < x.size(); ++i)
      bound.push_back(8 * kF32Unit *
                      (std::abs(x[i]) < 0.45f * cap ? std::abs(double{x[i]}) : double{cap}));
    EXPECT_CLOSE(run(*backend), expected, bound);
    EXPECT_EQ(expected[1], cap);
    EXPECT_EQ(expected[2], -cap);
  }
}

TEST_P(EveryBackend, RowsAreAddedInOrderWhereNoneAreNamed) {
  const auto from = random_values(3 * 37, 6, DType::kF32),
             to = random_values(3 * 37, 7, DType::kF32);
  const DeviceTensor added(*backend, DType::kF32, {3, 37}, from);
  const DeviceTensor sum(*backend, DType::kF32, {3, 37}, to);
  backend->add_rows(added.view(), {}, sum.view());
  const auto got = sum.values();
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], from[i] + to[i]) << i;
}

TEST_P(EveryBackend, LinearActivatesExtremeSumsLikeTheReference) {
  // One weight of one passes the sum through exactly.
  const auto x = activation_inputs(32, 1, dtype());
  for (const Activation activation : kActivations) {
    const auto run = [&](Backend& on, DType type) {
      const auto weights = on.pack_linear(matrix_source(1, 1, {1.0f}));
      const DeviceTensor in(on, type, {32, 1}, x);
      const DeviceTensor out = unwritten(on, DType::kF32, {32, 1});
      on.linear(
          {.weights = weights.get(), .x = in.view(), .activation = activation, .out = out.view()});
      return out.values();
    };
    const auto expected = run(*reference, DType::kF32);
    std::vector<double> bound;
    for (size_t i = 0; i < expected.size(); ++i)
      bound.push_back(activation_error(activation, x[i]) +
                      2 * kF32Unit * std::abs(double{expected[i]}) + 0x1p-126);
    SCOPED_TRACE(testing::Message() << "activation " << static_cast<int>(activation));
    EXPECT_CLOSE(run(*backend, dtype()), expected, bound);
  }
}

TEST_P(EveryBackend, ConvertIsTheReferenceToTheLastBit) {
  for (const int64_t d : kWidths)
    for (const int64_t pad : {0, 3}) {
      auto values = random_values(37 * d, 1, DType::kF32, 100.0f);
      const float special[] = {INFINITY, -INFINITY, 0.0f,           -0.0f,         3.4e38f,
                               1e-40f,   -1e-45f,   1.0f + 0x1p-8f, 1.0f + 0x3p-8f};
      for (size_t i = 0; i < std::size(special); ++i) values[i] = special[i];
      const auto run = [&](Backend& on, DType from, DType to) {
        const DeviceTensor x(on, from, {37, d}, values, pad);
        const DeviceTensor out = unwritten(on, to, {37, d}, pad);
        on.convert(x.view(), out.view());
        return out.values();
      };
      for (const DType other : {DType::kF32, dtype()}) {
        EXPECT_SAME_BITS(run(*backend, DType::kF32, other), run(*reference, DType::kF32, other));
        EXPECT_SAME_BITS(run(*backend, other, DType::kF32), run(*reference, other, DType::kF32));
      }
    }
}

struct RotaryCase {
  int64_t n_batch, n_tokens, first_position, n_heads, head_dim, rotary_dim;
};

TEST_P(EveryBackend, RotateAgreesWithTheReference) {
  const RotaryCase cases[] = {{1, 1, 0, 1, 2, 2},      {2, 7, 3, 3, 16, 16}, {1, 37, 0, 2, 64, 64},
                              {3, 2, 30, 5, 80, 32},   {1, 7, 0, 2, 96, 10}, {2, 1, 5, 4, 128, 128},
                              {1, 129, 1, 1, 256, 64}, {1, 3, 0, 2, 20, 6}};
  for (const RotaryCase& c : cases)
    for (const RotaryStyle style : {RotaryStyle::kHalves, RotaryStyle::kInterleaved})
      for (const int64_t pad : {0, 7}) {
        SCOPED_TRACE(testing::Message()
                     << "head_dim " << c.head_dim << ", rotary_dim " << c.rotary_dim
                     << ", interleaved " << (style == RotaryStyle::kInterleaved));
        const int64_t half = c.rotary_dim / 2, positions = c.first_position + c.n_tokens;
        const Shape shape = {c.n_batch * c.n_tokens, c.n_heads, c.head_dim};
        const auto values = random_values(shape.numel(), 1, dtype());
        const auto cosines = random_values(positions * half, 2);
        const auto sines = random_values(positions * half, 3);
        const auto run = [&](Backend& on, DType type, const std::vector<float>& x_values,
                             const std::vector<float>& sine_values) {
          const DeviceTensor cosine(on, DType::kF32, {positions, half}, cosines);
          const DeviceTensor sine(on, DType::kF32, {positions, half}, sine_values);
          const DeviceTensor x(on, type, shape, x_values, pad);
          on.rotate({.style = style,
                     .cosine = cosine.view(),
                     .sine = sine.view(),
                     .n_tokens = c.n_tokens,
                     .first_position = c.first_position,
                     .x = x.view()});
          return x.values();
        };
        const auto expected = run(*reference, DType::kF32, values, sines);
        std::vector<double> bound;
        for (size_t i = 0; i < expected.size(); ++i) {
          // Two products and their sum, of numbers of size up to 1; numbers beyond rotary_dim
          // stay as they are.
          const bool rotated = static_cast<int64_t>(i) % c.head_dim < c.rotary_dim;
          bound.push_back(rotated ? stored_error(dtype(), expected[i], 3 * kF32Unit * 2) : 0);
        }
        EXPECT_CLOSE(run(*backend, dtype(), values, sines), expected, bound);
      }
}

TEST_P(EveryBackend, StoreKvFillsItsPositionsAndNoOther) {
  struct Case {
    int64_t n_batch, n_kv_heads, head_dim, n_tokens, first_position, capacity, pad;
  };
  const Case cases[] = {{1, 1, 1, 1, 0, 1, 0},     {2, 3, 16, 7, 0, 9, 0},
                        {1, 2, 80, 37, 5, 50, 11}, {3, 4, 64, 1, 12, 13, 9},
                        {1, 1, 256, 2, 1, 4, 0},   {2, 2, 96, 129, 3, 140, 5}};
  for (const Case& c : cases) {
    const Shape rows = {c.n_batch * c.n_tokens, c.n_kv_heads, c.head_dim};
    const Shape cache = {c.n_batch, c.n_kv_heads, c.capacity, c.head_dim};
    const auto run = [&](Backend& on) {
      const DeviceTensor keys(on, dtype(), rows, random_values(rows.numel(), 1, dtype()), c.pad);
      const DeviceTensor values(on, dtype(), rows, random_values(rows.numel(), 2, dtype()), c.pad);
      const auto old = random_values(cache.numel(), 3, dtype());
      const DeviceTensor key_cache(on, dtype(), cache, old), value_cache(on, dtype(), cache, old);
      on.store_kv({.keys = keys.view(),
                   .values = values.view(),
                   .n_tokens = c.n_tokens,
                   .first_position = c.first_position,
                   .cache = {key_cache.view(), value_cache.view()}});
      auto all = key_cache.values();
      const auto second = value_cache.values();
      all.insert(all.end(), second.begin(), second.end());
      return all;
    };
    EXPECT_SAME_BITS(run(*backend), run(*reference));
  }
}

}  // namespace
}  // namespace sluice::impl::test
